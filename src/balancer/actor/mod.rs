//! The actor that owns the connections.

mod endpoints;
mod named;

use std::{sync::Arc, time::Duration};

use actix::{
    Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, MessageResult, Recipient,
    ResponseFuture, Supervised,
};
use tokio::{sync::broadcast, time::Instant};
use tokio_stream::{StreamExt, wrappers::BroadcastStream};

use super::{
    AwaitReady, BalancePolicy, ConnectivityChange, MemberView, ReadySet, Shutdown, Subscribe,
    SubscribeRecipient,
    demand::{Demand, Known, demands},
};
use crate::{
    connection::{
        Connect, ConnectivityChanged, ConnectivityState, Drain, EndpointId, Probe, Rest, Suspected,
        Wanted, actor::ConnectionActor, shared::Shared,
    },
    retry::MemberReady,
    runtime::{
        delivery::deliver,
        supervisor::{ActorFailed, crashes, supervise},
    },
    transport::Endpoint,
};

/// How often connections hear that calls are still waiting.
const REMIND: Duration = Duration::from_millis(500);
/// A subscriber that is further behind than this loses the oldest changes.
const CHANGES_KEPT: usize = 256;

/// Owns one connection actor an endpoint and publishes who is ready.
pub(crate) struct BalancerActor {
    shared: Arc<Shared>,
    policy: Arc<dyn BalancePolicy>,
    members: Vec<Member>,
    /// The one endpoint that is kept connected, where the policy wants one.
    kept: Option<EndpointId>,
    next_id: u64,
    /// The endpoints the user gave, and how often.
    seeds: Arc<[Endpoint]>,
    choice: u64,
    waiters: Vec<AwaitReady>,
    /// Since when calls wait without a pause.
    waited_since: Option<Instant>,
    reminding: bool,
    forgetting: bool,
    changes: broadcast::Sender<ConnectivityChange>,
    /// Calls that wait for their next attempt hear of a member that became ready.
    retries: Recipient<MemberReady>,
    closed: bool,
}

struct Member {
    view: MemberView,
    actor: Addr<ConnectionActor>,
    /// Until then it counts as named by requests.
    named_until: Option<Instant>,
}

impl BalancerActor {
    pub(crate) fn start(
        shared: Arc<Shared>,
        policy: Arc<dyn BalancePolicy>,
        retries: Recipient<MemberReady>,
    ) -> Addr<Self> {
        supervise(
            "balancer",
            |_| {},
            |_| Self {
                shared,
                policy,
                members: Vec::new(),
                kept: None,
                next_id: 0,
                seeds: Arc::default(),
                choice: 0,
                waiters: Vec::new(),
                waited_since: None,
                reminding: false,
                forgetting: false,
                changes: broadcast::Sender::new(CHANGES_KEPT),
                retries,
                closed: false,
            },
        )
    }

    fn publish(&mut self) {
        let connections = |state| {
            self.members
                .iter()
                .filter(move |member| member.view.state == state)
                .filter(|member| !self.is_only_named(member))
                .filter_map(|member| member.view.connection.clone())
                .collect()
        };
        let set = ReadySet {
            ready: connections(ConnectivityState::Ready),
            leaderless: connections(ConnectivityState::NoLeader),
            members: self
                .members
                .iter()
                .map(|member| member.view.clone())
                .collect(),
            seeds: self.seeds.clone(),
            choice: self.choice,
            closed: self.closed,
        };
        let (ready, leaderless) = (!set.ready.is_empty(), !set.leaderless.is_empty());
        self.shared.ready.publish(set);
        self.waiters.retain(|waiter| !waiter.ready.is_closed());
        if ready || leaderless {
            let (served, waiting): (Vec<_>, Vec<_>) = self
                .waiters
                .drain(..)
                .partition(|waiter| ready || waiter.leaderless);
            self.waiters = waiting;
            for waiter in served {
                let _ = waiter.ready.send(());
            }
        }
    }

    fn meet_demand(&mut self) {
        let now = Instant::now();
        let endpoints: Vec<Known> = self
            .members
            .iter()
            .map(|member| Known {
                id: member.view.id,
                state: member.view.state,
                named: member.is_named(now),
            })
            .collect();
        let (kept, demands) = demands(self.policy.connects(), self.kept, &endpoints);
        self.kept = kept;
        for demand in demands {
            match demand {
                Demand::Connect(id) => self.tell(id, Connect),
                Demand::Rest(id) => self.tell(id, Rest),
            }
        }
    }

    fn tell<M>(&self, id: EndpointId, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        ConnectionActor: Handler<M>,
    {
        if let Some(member) = self.members.iter().find(|member| member.view.id == id) {
            member.actor.do_send(message);
        }
    }

    fn remind(&mut self, ctx: &mut Context<Self>) {
        self.waiters.retain(|waiter| !waiter.ready.is_closed());
        self.reminding = !self.waiters.is_empty();
        if !self.reminding {
            self.waited_since = None;
            return;
        }
        let since = *self.waited_since.get_or_insert_with(Instant::now);
        self.fall_back(since, ctx);
        for member in &self.members {
            member.actor.do_send(Wanted);
        }
        ctx.notify_later(Remind, REMIND);
    }
}

/// Calls may still be waiting.
#[derive(Message)]
#[rtype(result = "()")]
struct Remind;

impl Actor for BalancerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // After a crash: timers are gone, and a demand may not have been met.
        self.publish();
        self.meet_demand();
        self.forgetting = false;
        self.forget_names(ctx);
        self.remind(ctx);
    }
}

impl Supervised for BalancerActor {}

crashes!(BalancerActor);

impl Handler<ConnectivityChanged> for BalancerActor {
    type Result = ();

    fn handle(&mut self, changed: ConnectivityChanged, _: &mut Context<Self>) {
        let Some(member) = self
            .members
            .iter_mut()
            .find(|member| member.view.id == changed.id)
        else {
            return;
        };
        let view = &mut member.view;
        let news = view.state != changed.state;
        if news {
            view.since = Instant::now();
        }
        view.state = changed.state;
        view.connection = changed.connection;
        view.error = match changed.state {
            ConnectivityState::Ready => None,
            // An attempt under way does not make the last failure forgotten.
            ConnectivityState::Connecting => changed.error.or(view.error.take()),
            ConnectivityState::Idle
            | ConnectivityState::NoLeader
            | ConnectivityState::TransientFailure
            | ConnectivityState::Shutdown => changed.error,
        };
        let change = ConnectivityChange {
            endpoint: view.endpoint.as_str().to_owned(),
            state: view.state,
            error: view.error.clone(),
        };
        self.publish();
        self.meet_demand();
        if news {
            if change.state == ConnectivityState::Ready {
                self.retries.do_send(MemberReady);
            }
            let _ = self.changes.send(change);
        }
    }
}

impl Handler<Suspected> for BalancerActor {
    type Result = ();

    fn handle(&mut self, suspected: Suspected, _: &mut Context<Self>) {
        for member in &self.members {
            if member.view.id != suspected.id && member.view.connection.is_some() {
                member.actor.do_send(Probe);
            }
        }
    }
}

impl Handler<ActorFailed> for BalancerActor {
    type Result = ();

    fn handle(&mut self, failed: ActorFailed, _: &mut Context<Self>) {
        tracing::warn!(
            actor = failed.actor,
            reason = failed.reason,
            failures = failed.failures,
            "restarted after a crash"
        );
    }
}

#[cfg(feature = "test-faults")]
impl Handler<super::CrashConnection> for BalancerActor {
    type Result = ResponseFuture<bool>;

    fn handle(
        &mut self,
        super::CrashConnection(endpoint): super::CrashConnection,
        _: &mut Context<Self>,
    ) -> ResponseFuture<bool> {
        let crash = self
            .members
            .iter()
            .find(|member| member.view.endpoint == endpoint)
            .map(|member| member.actor.send(crate::runtime::supervisor::Crash));
        Box::pin(async move {
            match crash {
                Some(crash) => crash.await.is_err(),
                None => false,
            }
        })
    }
}

impl Handler<AwaitReady> for BalancerActor {
    type Result = ();

    fn handle(&mut self, waiter: AwaitReady, ctx: &mut Context<Self>) {
        if self.closed {
            return;
        }
        let set = self.shared.ready.load();
        let served = !set.ready.is_empty() || (waiter.leaderless && !set.leaderless.is_empty());
        if served {
            let _ = waiter.ready.send(());
            return;
        }
        self.waiters.push(waiter);
        if !self.reminding {
            self.remind(ctx);
        }
    }
}

impl Handler<Remind> for BalancerActor {
    type Result = ();

    fn handle(&mut self, _: Remind, ctx: &mut Context<Self>) {
        self.remind(ctx);
    }
}

impl Handler<Subscribe> for BalancerActor {
    type Result = MessageResult<Subscribe>;

    fn handle(&mut self, _: Subscribe, _: &mut Context<Self>) -> MessageResult<Subscribe> {
        MessageResult(self.changes.subscribe())
    }
}

impl Handler<SubscribeRecipient> for BalancerActor {
    type Result = ();

    fn handle(&mut self, SubscribeRecipient(recipient): SubscribeRecipient, _: &mut Context<Self>) {
        let changes = BroadcastStream::new(self.changes.subscribe()).filter_map(Result::ok);
        actix_rt::spawn(deliver(changes, recipient));
    }
}

impl Handler<Shutdown> for BalancerActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, shutdown: Shutdown, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        self.closed = true;
        let members = std::mem::take(&mut self.members);
        self.waiters.clear();
        self.publish();
        let drains: Vec<_> = members
            .iter()
            .map(|member| member.actor.send(Drain))
            .collect();
        drop(members);
        ctx.stop();
        Box::pin(async move {
            let all = async {
                for drained in drains {
                    // A connection whose actor is gone has nothing to close.
                    let _ = drained.await;
                }
            };
            let _ = tokio::time::timeout(shutdown.grace, all).await;
        })
    }
}
