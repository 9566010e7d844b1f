//! The actor behind one endpoint: its life, from the first dial to the end.

mod live;
mod liveness;

use std::sync::Arc;

use actix::{
    Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, ResponseFuture,
    SpawnHandle, Supervised, WeakAddr,
};
use tokio::time::Instant;

use super::{
    ClusterLeft, Connect, ConnectionLost, ConnectivityChanged, ConnectivityState, Dialled, Drain,
    EndpointId, RequestsRefused, Rest, Verdict, Wanted,
    probe::{self, Answer, DriverNews},
    shared::{Shared, other_cluster},
    state::{Machine, Next},
};
use crate::{
    balancer::actor::BalancerActor,
    error::{Error, ErrorKind, Outcome},
    runtime::supervisor::{crashes, supervise},
    transport::{Endpoint, channel::Metadata},
};
use live::{AbortOnDrop, Left, Live};

/// Dials, drives and watches over the connection to one endpoint.
pub(crate) struct ConnectionActor {
    id: EndpointId,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    balancer: WeakAddr<BalancerActor>,
    machine: Machine,
    live: Option<Live>,
    error: Option<Error>,
    left: Option<Left>,
    retry: Option<SpawnHandle>,
    /// The attempt under way, which ends when it is not wanted any more.
    dialling: Option<AbortOnDrop>,
    restarted: bool,
}

impl ConnectionActor {
    pub(crate) fn start(
        id: EndpointId,
        endpoint: Endpoint,
        shared: Arc<Shared>,
        balancer: WeakAddr<BalancerActor>,
    ) -> Addr<Self> {
        let parent = balancer.clone();
        let tell_parent = move |failed| {
            if let Some(parent) = parent.upgrade() {
                parent.do_send(failed);
            }
        };
        supervise("connection", tell_parent, |_| Self {
            id,
            endpoint,
            shared,
            balancer,
            machine: Machine::new(),
            live: None,
            error: None,
            left: None,
            retry: None,
            dialling: None,
            restarted: false,
        })
    }

    fn apply(&mut self, next: Next, ctx: &mut Context<Self>) {
        match next {
            Next::Stay => {}
            Next::Dial(generation) => {
                self.announce();
                self.dial(generation, ctx);
            }
            Next::Wait(delay) => {
                self.live = None;
                self.announce();
                if let Some(pending) = self.retry.take() {
                    ctx.cancel_future(pending);
                }
                self.retry = Some(ctx.notify_later(RetryDial, delay));
            }
            Next::Use | Next::Close => self.announce(),
        }
    }

    fn announce(&self) {
        let state = self.machine.state();
        let error = match state {
            ConnectivityState::Ready => None,
            _ => self.error.clone(),
        };
        match &error {
            None => tracing::debug!(endpoint = %self.endpoint, %state, "connectivity"),
            Some(error) => {
                tracing::debug!(endpoint = %self.endpoint, %state, %error, "connectivity");
            }
        }
        self.tell_balancer(ConnectivityChanged {
            id: self.id,
            state,
            connection: self.live.as_ref().map(|live| live.connection.clone()),
            error,
        });
    }

    fn tell_balancer<M>(&self, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        BalancerActor: Handler<M>,
    {
        if let Some(balancer) = self.balancer.upgrade() {
            balancer.do_send(message);
        }
    }

    fn metadata(&self) -> Metadata {
        Metadata {
            require_leader: true,
            token: self.shared.token.load_without_waiting().value,
            timeout: None,
        }
    }

    fn dial(&mut self, generation: u64, ctx: &mut Context<Self>) {
        let actor = ctx.address().downgrade();
        let told = actor.clone();
        let token = self.shared.token.generation();
        let (endpoint, shared, metadata) =
            (self.endpoint.clone(), self.shared.clone(), self.metadata());
        let dialling = actix_rt::spawn(async move {
            let news = move |news| match news {
                DriverNews::Refused => tell(&actor, RequestsRefused { generation }),
                DriverNews::Ended(reason) => tell(&actor, ConnectionLost { generation, reason }),
            };
            let result = probe::first_contact(&endpoint, &shared.dial, &metadata, news).await;
            if result.as_ref().is_ok_and(|contact| contact.token_ignored) {
                shared.token.give_up(token);
            }
            tell(&told, Dialled { generation, result });
        });
        self.dialling = Some(AbortOnDrop(dialling));
    }
}

fn tell<M>(actor: &WeakAddr<ConnectionActor>, message: M)
where
    M: Message + Send + 'static,
    M::Result: Send,
    ConnectionActor: Handler<M>,
{
    if let Some(actor) = actor.upgrade() {
        actor.do_send(message);
    }
}

/// The delay before the next attempt is over.
#[derive(Message)]
#[rtype(result = "()")]
struct RetryDial;

impl Actor for ConnectionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::take(&mut self.restarted) {
            return;
        }
        // Timers died with the crash. The connection itself did not.
        self.retry = None;
        if let Some(live) = self.live.as_mut() {
            live.probing = false;
            live.due = None;
            if live.driver.has_ended() {
                let generation = live.connection.generation;
                return self.give_up(generation, Verdict::Closed, ctx);
            }
            let verdict = live.connection.health().verdict;
            self.probe_again(verdict, ctx);
        }
        let next = self.machine.restarted();
        self.apply(next, ctx);
    }
}

impl Supervised for ConnectionActor {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.restarted = true;
    }
}

crashes!(ConnectionActor);

impl Handler<Connect> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: Connect, ctx: &mut Context<Self>) {
        let next = self.machine.connect();
        self.apply(next, ctx);
    }
}

impl Handler<Wanted> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: Wanted, ctx: &mut Context<Self>) {
        let next = self.machine.wanted(Instant::now());
        self.apply(next, ctx);
        if self.machine.state() == ConnectivityState::NoLeader {
            self.probe_soon(ctx);
        }
    }
}

impl Handler<RetryDial> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: RetryDial, ctx: &mut Context<Self>) {
        self.retry = None;
        let next = self.machine.retry();
        self.apply(next, ctx);
    }
}

impl Handler<Dialled> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, Dialled { generation, result }: Dialled, ctx: &mut Context<Self>) {
        if generation != self.machine.generation() {
            return;
        }
        let failure = match result {
            // Its end was told before there was anything to end, and will not be told again.
            Ok(contact) if contact.driver.has_ended() || !contact.channel.accepts_requests() => {
                Error::new(
                    ErrorKind::ConnectionLost,
                    Outcome::NotSent,
                    "the connection ended as soon as it was made",
                )
                .with_endpoint(self.endpoint.name())
            }
            Ok(contact) => {
                let cluster = match &contact.answer {
                    Answer::Seen(seen) => seen.cluster,
                    Answer::Alive | Answer::NoLeader | Answer::Silent | Answer::Broken(_) => 0,
                };
                if self.shared.cluster.accepts(cluster) {
                    return self.take_into_use(generation, contact, ctx);
                }
                other_cluster(self.shared.cluster.get(), cluster)
                    .with_endpoint(self.endpoint.name())
            }
            Err(error) => error,
        };
        self.error = Some(failure);
        let next = self
            .machine
            .dial_failed(generation, Instant::now(), fastrand::f64());
        self.apply(next, ctx);
    }
}

impl Handler<ConnectionLost> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, lost: ConnectionLost, ctx: &mut Context<Self>) {
        if self
            .live
            .as_ref()
            .is_some_and(|live| live.connection.generation == lost.generation)
        {
            self.error = Some(
                Error::new(ErrorKind::ConnectionLost, Outcome::NotSent, lost.reason)
                    .with_endpoint(self.endpoint.name()),
            );
            self.give_up(lost.generation, Verdict::Closed, ctx);
        }
    }
}

impl Handler<RequestsRefused> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, refused: RequestsRefused, ctx: &mut Context<Self>) {
        self.retire(refused.generation, ctx);
    }
}

impl Handler<ClusterLeft> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, left: ClusterLeft, ctx: &mut Context<Self>) {
        self.leave_cluster(left.generation, left.cluster, ctx);
    }
}

impl Handler<Rest> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: Rest, ctx: &mut Context<Self>) {
        let next = self.machine.rest();
        if next == Next::Close {
            self.dialling = None;
            if let Some(live) = self.live.take() {
                drop(live.leave());
            }
            self.error = None;
            self.left = None;
        }
        self.apply(next, ctx);
    }
}

impl Handler<Drain> for ConnectionActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Drain, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        let next = self.machine.shut_down();
        self.dialling = None;
        let ended = self.live.take().map(Live::leave);
        self.apply(next, ctx);
        ctx.stop();
        Box::pin(async move {
            if let Some(ended) = ended {
                ended.await;
            }
        })
    }
}
