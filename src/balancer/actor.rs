//! The actor that owns the connections.

use std::{sync::Arc, time::Duration};

use actix::{
    Actor, Addr, AsyncContext, Context, Handler, Message, Recipient, SpawnHandle, Supervised,
};
use tokio::{sync::broadcast, time::Instant};

use super::{
    BalancePolicy, ConnectivityChange, ConnectivityState, EndpointView, ReadySet, ReadySetCell,
    connection_plan::{ConnectionChange, EndpointSummary, plan_connections},
    messages::{AwaitReady, SpeedUpReconnects},
};
use crate::{
    connection::{
        ConnectionActor, ConnectionContext, EndpointId,
        messages::{Connect, Disconnect, ReconnectSooner},
    },
    retry::MemberReady,
    runtime::supervisor::supervise,
    transport::Endpoint,
};

/// Interval of [`ReconnectSooner`] while calls wait for a ready member.
const SPEED_UP_INTERVAL: Duration = Duration::from_millis(500);
/// Number of changes buffered for a slow subscriber, which then misses the oldest ones.
const BUFFERED_CHANGES: usize = 256;

/// Owns one connection actor per endpoint and publishes which of them are ready.
pub(crate) struct BalancerActor {
    pub(super) context: Arc<ConnectionContext>,
    pub(super) ready_set: Arc<ReadySetCell>,
    policy: Arc<dyn BalancePolicy>,
    pub(super) endpoints: Vec<ManagedEndpoint>,
    /// The only endpoint that stays connected with `ConnectionMode::Single`.
    pub(super) kept: Option<EndpointId>,
    pub(super) next_id: u64,
    /// Endpoints set by the user, and the number of times the user has set them.
    pub(super) seeds: Arc<[Endpoint]>,
    pub(super) seeds_version: u64,
    pub(super) waiting_calls: Vec<AwaitReady>,
    /// Time since which there has always been a waiting call.
    waiting_since: Option<Instant>,
    /// Whether a `SpeedUpReconnects` timer is set.
    pub(super) speed_up_scheduled: bool,
    /// Whether a `NamedEndpointsExpired` timer is set.
    pub(super) expiry_scheduled: bool,
    /// Timer of the next `CheckStreams`.
    pub(super) stream_check: Option<SpawnHandle>,
    pub(super) changes: broadcast::Sender<ConnectivityChange>,
    pub(super) retries: Recipient<MemberReady>,
    pub(super) closed: bool,
}

/// One endpoint and its connection actor.
pub(super) struct ManagedEndpoint {
    pub(super) view: EndpointView,
    pub(super) actor: Addr<ConnectionActor>,
    /// Time until which the endpoint counts as named by requests.
    pub(super) named_until: Option<Instant>,
}

impl BalancerActor {
    pub(crate) fn start(
        context: Arc<ConnectionContext>,
        ready_set: Arc<ReadySetCell>,
        policy: Arc<dyn BalancePolicy>,
        retries: Recipient<MemberReady>,
    ) -> Addr<Self> {
        supervise(
            "balancer",
            |_| {},
            |_| Self {
                context,
                ready_set,
                policy,
                endpoints: Vec::new(),
                kept: None,
                next_id: 0,
                seeds: Arc::default(),
                seeds_version: 0,
                waiting_calls: Vec::new(),
                waiting_since: None,
                speed_up_scheduled: false,
                expiry_scheduled: false,
                stream_check: None,
                changes: broadcast::Sender::new(BUFFERED_CHANGES),
                retries,
                closed: false,
            },
        )
    }

    /// Publishes a new [`ReadySet`] and wakes the calls that were waiting for it.
    pub(super) fn publish(&mut self) {
        let connections = |state| {
            self.endpoints
                .iter()
                .filter(move |endpoint| endpoint.view.state == state)
                .filter(|endpoint| !self.is_reserved_for_named_requests(endpoint))
                .filter_map(|endpoint| endpoint.view.connection.clone())
                .collect()
        };
        let views = self.endpoints.iter().map(|endpoint| endpoint.view.clone());
        let set = ReadySet {
            ready: connections(ConnectivityState::Ready),
            leaderless: connections(ConnectivityState::NoLeader),
            views: views.collect(),
            seeds: self.seeds.clone(),
            seeds_version: self.seeds_version,
            closed: self.closed,
        };
        let (ready, leaderless) = (!set.ready.is_empty(), !set.leaderless.is_empty());
        self.ready_set.publish(set);
        self.waiting_calls.retain(|call| !call.ready.is_closed());
        if ready || leaderless {
            let (served, waiting): (Vec<_>, Vec<_>) = self
                .waiting_calls
                .drain(..)
                .partition(|call| ready || call.leaderless);
            self.waiting_calls = waiting;
            for call in served {
                let _ = call.ready.send(());
            }
        }
    }

    /// Connects and disconnects endpoints as the policy requires.
    pub(super) fn update_connections(&mut self) {
        let now = Instant::now();
        let endpoints: Vec<EndpointSummary> = self
            .endpoints
            .iter()
            .map(|endpoint| EndpointSummary {
                id: endpoint.view.id,
                state: endpoint.view.state,
                named: endpoint.is_named(now),
            })
            .collect();
        let plan = plan_connections(self.policy.connection_mode(), self.kept, &endpoints);
        self.kept = plan.kept;
        for change in plan.changes {
            match change {
                ConnectionChange::Connect(id) => self.send_to(id, Connect),
                ConnectionChange::Disconnect(id) => self.send_to(id, Disconnect),
            }
        }
    }

    fn send_to<M>(&self, id: EndpointId, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        ConnectionActor: Handler<M>,
    {
        let endpoint = self.endpoints.iter().find(|other| other.view.id == id);
        if let Some(endpoint) = endpoint {
            endpoint.actor.do_send(message);
        }
    }

    /// Makes all endpoints reconnect sooner. Repeats this at intervals until no call waits.
    pub(super) fn speed_up_reconnects(&mut self, ctx: &mut Context<Self>) {
        self.waiting_calls.retain(|call| !call.ready.is_closed());
        self.speed_up_scheduled = !self.waiting_calls.is_empty();
        if !self.speed_up_scheduled {
            self.waiting_since = None;
            return;
        }
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        self.fall_back_to_seeds(since, ctx);
        for endpoint in &self.endpoints {
            endpoint.actor.do_send(ReconnectSooner);
        }
        ctx.notify_later(SpeedUpReconnects, SPEED_UP_INTERVAL);
    }
}

impl Actor for BalancerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // A crash ends all timers and may have lost a command.
        self.publish();
        self.update_connections();
        self.expiry_scheduled = false;
        self.schedule_named_expiry(ctx);
        self.stream_check = None;
        self.schedule_stream_check(ctx);
        self.speed_up_reconnects(ctx);
    }
}

impl Supervised for BalancerActor {}

crate::runtime::supervisor::crashes!(BalancerActor);
