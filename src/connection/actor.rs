//! The actor behind one endpoint.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use actix::{
    Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, ResponseFuture,
    SpawnHandle, Supervised, WeakAddr,
};
use tokio::time::Instant;

use super::{
    Connect, Connection, ConnectionLost, ConnectivityChanged, ConnectivityState, Dialled, Drain,
    EndpointId, Health, Probe, Probed, Rest, Sighting, Suspect, Suspected, Verdict, Wanted,
    probe::{self, Answer, DriverTask},
    state::{Machine, Next},
    verdict::Progress,
};
use crate::{
    auth::TokenCell,
    balancer::{ReadySetCell, actor::BalancerActor},
    error::{Error, ErrorKind, Outcome},
    supervisor::{crashes, supervise},
    transport::{Endpoint, channel::Metadata, dial::DialOptions},
};

/// Between two probes of a member under suspicion, growing from the first to the second.
const PROBE_AGAIN: Duration = Duration::from_millis(100);
const PROBE_AGAIN_AT_MOST: Duration = Duration::from_millis(200);
/// Between two looks at a member that carries streams or is watched for its leader.
const SLOW_PROBE: Duration = Duration::from_secs(3);

/// What all connections of a client share.
pub(crate) struct Shared {
    pub(crate) dial: DialOptions,
    pub(crate) token: Arc<TokenCell>,
    pub(crate) ready: Arc<ReadySetCell>,
    pub(crate) cluster: ClusterId,
    /// Whether members are looked at even when nothing seems wrong, to know who leads.
    pub(crate) follow_leader: bool,
}

/// The cluster the client belongs to: that of the first member that told it.
#[derive(Debug, Default)]
pub(crate) struct ClusterId(AtomicU64);

impl ClusterId {
    /// Zero while unknown.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether an answer from that cluster is one of ours.
    pub(crate) fn accepts(&self, cluster: u64) -> bool {
        if cluster == 0 || self.get() == cluster {
            return true;
        }
        self.0
            .compare_exchange(0, cluster, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

/// Dials, drives and watches over the connection to one endpoint.
pub(crate) struct ConnectionActor {
    id: EndpointId,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    balancer: WeakAddr<BalancerActor>,
    machine: Machine,
    live: Option<Live>,
    error: Option<Error>,
    retry: Option<SpawnHandle>,
    restarted: bool,
}

/// The connection in use.
struct Live {
    connection: Arc<Connection>,
    driver: DriverTask,
    progress: Progress,
    serving: bool,
    probing: bool,
    due: Option<SpawnHandle>,
    interval: Duration,
    /// Ends with the connection.
    _health_watch: AbortOnDrop,
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
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
            retry: None,
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
            token: self.shared.token.value(),
            timeout: None,
        }
    }

    fn dial(&mut self, generation: u64, ctx: &mut Context<Self>) {
        let actor = ctx.address().downgrade();
        let told = actor.clone();
        let (endpoint, shared, metadata) =
            (self.endpoint.clone(), self.shared.clone(), self.metadata());
        actix_rt::spawn(async move {
            let ended = move |reason| tell(&actor, ConnectionLost { generation, reason });
            let result = probe::first_contact(&endpoint, &shared.dial, &metadata, ended).await;
            tell(&told, Dialled { generation, result });
        });
    }

    fn probe(&mut self) -> Option<impl Future<Output = Probed> + 'static> {
        let metadata = self.metadata();
        let live = self.live.as_mut()?;
        if live.probing {
            return None;
        }
        live.probing = true;
        let channel = live.connection.channel.clone();
        let generation = live.connection.generation;
        Some(async move {
            let answer = probe::ask(&channel, &metadata).await;
            Probed { generation, answer }
        })
    }

    fn start_probe(&mut self, ctx: &mut Context<Self>) {
        if let Some(probe) = self.probe() {
            let actor = ctx.address().downgrade();
            actix_rt::spawn(async move { tell(&actor, probe.await) });
        }
    }

    /// Takes in what a probe of the connection in use brought.
    fn judge(&mut self, answer: Answer, ctx: &mut Context<Self>) {
        let Some(live) = self.live.as_mut() else {
            return;
        };
        let generation = live.connection.generation;
        let (verdict, sighting) = match answer {
            Answer::Seen(seen) => {
                let others = self.shared.ready.load().sightings(self.id);
                (live.progress.look(&seen, others), Some(seen))
            }
            Answer::Alive => (Verdict::Fine, None),
            Answer::NoLeader => (Verdict::NoLeader, None),
            Answer::Silent => return self.give_up(generation, Verdict::Unresponsive, ctx),
            Answer::Broken(error) => {
                self.error = Some(error);
                return self.give_up(generation, Verdict::Closed, ctx);
            }
        };
        self.settle(generation, verdict, sighting, ctx);
    }

    fn settle(
        &mut self,
        generation: u64,
        verdict: Verdict,
        sighting: Option<Sighting>,
        ctx: &mut Context<Self>,
    ) {
        let Some(live) = self.live.as_mut() else {
            return;
        };
        let verdict = match verdict {
            Verdict::Fine if !live.serving => Verdict::NotServing,
            other => other,
        };
        let known = live.connection.health();
        let sighting = sighting.or(known.sighting);
        if verdict != known.verdict && !verdict.is_fine() {
            tracing::info!(endpoint = %self.endpoint, reason = verdict.reason(), "member avoided");
            self.error = Some(complaint(verdict).with_endpoint(self.endpoint.name()));
        }
        live.connection
            .health
            .send_replace(Health { verdict, sighting });
        let next = self.machine.leader_seen(generation, verdict.is_fine());
        self.apply(next, ctx);
        self.probe_again(verdict, ctx);
    }

    fn probe_again(&mut self, verdict: Verdict, ctx: &mut Context<Self>) {
        let Some(live) = self.live.as_mut() else {
            return;
        };
        let delay = if live.connection.is_suspected() || !verdict.is_fine() {
            live.interval = (live.interval * 3 / 2).min(PROBE_AGAIN_AT_MOST);
            live.interval
        } else {
            live.interval = PROBE_AGAIN;
            SLOW_PROBE
        };
        if let Some(pending) = live.due.take() {
            ctx.cancel_future(pending);
        }
        let generation = live.connection.generation;
        live.due = Some(ctx.notify_later(ProbeDue { generation }, jittered(delay)));
    }

    /// Ends the connection in use: what is in flight on it fails at once.
    fn give_up(&mut self, generation: u64, verdict: Verdict, ctx: &mut Context<Self>) {
        let next = self
            .machine
            .lost(generation, Instant::now(), fastrand::f64());
        if next == Next::Stay {
            return;
        }
        if let Some(live) = self.live.take() {
            if verdict == Verdict::Unresponsive {
                self.error = Some(complaint(verdict).with_endpoint(self.endpoint.name()));
            }
            let sighting = live.connection.health().sighting;
            live.connection
                .health
                .send_replace(Health { verdict, sighting });
            if let Some(due) = live.due {
                ctx.cancel_future(due);
            }
        }
        self.apply(next, ctx);
    }

    fn take_into_use(
        &mut self,
        generation: u64,
        contact: probe::FirstContact,
        ctx: &mut Context<Self>,
    ) {
        let actor = ctx.address().downgrade();
        let mut progress = Progress::default();
        let (verdict, sighting) = match contact.answer {
            Answer::Seen(seen) => {
                let others = self.shared.ready.load().sightings(self.id);
                (progress.look(&seen, others), Some(seen))
            }
            Answer::NoLeader => (Verdict::NoLeader, None),
            Answer::Alive | Answer::Silent | Answer::Broken(_) => (Verdict::Fine, None),
        };
        let connection = Arc::new(Connection::new(
            self.id,
            self.endpoint.clone(),
            generation,
            contact.channel,
            actor.clone(),
            Health { verdict, sighting },
        ));
        let metadata = Metadata {
            require_leader: false,
            ..self.metadata()
        };
        let serving = probe::watch_serving(connection.channel.clone(), metadata, move |serving| {
            tell(
                &actor,
                ServingChanged {
                    generation,
                    serving,
                },
            );
        });
        self.live = Some(Live {
            connection,
            driver: contact.driver,
            progress,
            serving: true,
            probing: false,
            due: None,
            interval: PROBE_AGAIN,
            _health_watch: AbortOnDrop(actix_rt::spawn(serving)),
        });
        self.error =
            (!verdict.is_fine()).then(|| complaint(verdict).with_endpoint(self.endpoint.name()));
        let next = self
            .machine
            .dialled(generation, verdict.is_fine(), Instant::now());
        if next == Next::Stay {
            self.live = None;
            return;
        }
        self.apply(next, ctx);
        self.probe_again(verdict, ctx);
    }
}

fn complaint(verdict: Verdict) -> Error {
    let kind = match verdict {
        Verdict::NoLeader | Verdict::CutOff => ErrorKind::NoLeader,
        Verdict::Learner => ErrorKind::NotSupportedForLearner,
        Verdict::Unresponsive => ErrorKind::MemberUnresponsive,
        Verdict::NotServing => ErrorKind::Unhealthy,
        Verdict::Closed | Verdict::Fine => ErrorKind::ConnectionLost,
    };
    Error::new(kind, Outcome::NotSent, verdict.reason())
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

fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(0.8 + 0.4 * fastrand::f64())
}

/// The delay before the next attempt is over.
#[derive(Message)]
#[rtype(result = "()")]
struct RetryDial;

/// It is time for the next probe.
#[derive(Message)]
#[rtype(result = "()")]
struct ProbeDue {
    generation: u64,
}

/// The member's health service told whether it serves.
#[derive(Message)]
#[rtype(result = "()")]
struct ServingChanged {
    generation: u64,
    serving: bool,
}

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
            Ok(contact) if contact.driver.has_ended() => Error::new(
                ErrorKind::ConnectionLost,
                Outcome::NotSent,
                "the connection ended as soon as it was made",
            )
            .with_endpoint(self.endpoint.name()),
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

pub(crate) fn other_cluster(known: u64, cluster: u64) -> Error {
    Error::new(
        ErrorKind::ClusterChanged,
        Outcome::NotSent,
        format!(
            "it belongs to the cluster {cluster:x}, while this client belongs to {known:x}; \
             make a new client if the change is wanted"
        ),
    )
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

impl Handler<Suspect> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, suspect: Suspect, ctx: &mut Context<Self>) {
        if suspect.generation != self.machine.generation() {
            return;
        }
        if self.live.as_ref().is_some_and(|live| !live.probing) {
            self.tell_balancer(Suspected { id: self.id });
            self.start_probe(ctx);
        }
    }
}

impl Handler<Probe> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: Probe, ctx: &mut Context<Self>) {
        self.start_probe(ctx);
    }
}

impl Handler<ProbeDue> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, due: ProbeDue, ctx: &mut Context<Self>) {
        let Some(live) = self
            .live
            .as_mut()
            .filter(|live| live.connection.generation == due.generation)
        else {
            return;
        };
        live.due = None;
        let verdict = live.connection.health().verdict;
        let suspected = live.connection.is_suspected();
        if suspected {
            self.tell_balancer(Suspected { id: self.id });
        }
        let Some(live) = self.live.as_ref() else {
            return;
        };
        if suspected
            || !verdict.is_fine()
            || live.connection.has_standing()
            || self.shared.follow_leader
        {
            self.start_probe(ctx);
        } else {
            self.probe_again(verdict, ctx);
        }
    }
}

impl Handler<Probed> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, Probed { generation, answer }: Probed, ctx: &mut Context<Self>) {
        let Some(live) = self
            .live
            .as_mut()
            .filter(|live| live.connection.generation == generation)
        else {
            return;
        };
        live.probing = false;
        self.judge(answer, ctx);
    }
}

impl Handler<ServingChanged> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, told: ServingChanged, ctx: &mut Context<Self>) {
        let Some(live) = self
            .live
            .as_mut()
            .filter(|live| live.connection.generation == told.generation)
        else {
            return;
        };
        if live.serving == told.serving {
            return;
        }
        live.serving = told.serving;
        let known = live.connection.health().verdict;
        let verdict = match known {
            Verdict::NotServing if told.serving => Verdict::Fine,
            other => other,
        };
        self.settle(told.generation, verdict, None, ctx);
    }
}

impl Handler<Rest> for ConnectionActor {
    type Result = ();

    fn handle(&mut self, _: Rest, ctx: &mut Context<Self>) {
        let next = self.machine.rest();
        if next == Next::Close {
            if let Some(live) = self.live.take() {
                drop(live.leave());
            }
            self.error = None;
        }
        self.apply(next, ctx);
    }
}

impl Handler<Drain> for ConnectionActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Drain, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        let next = self.machine.shut_down();
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

impl Live {
    /// Lets what is in flight finish; the future resolves when the connection is closed.
    fn leave(self) -> impl Future<Output = ()> + 'static {
        let Self {
            connection, driver, ..
        } = self;
        // Streams would never finish by themselves: they hear that they have to leave.
        let health = Health {
            verdict: Verdict::Closed,
            sighting: connection.health().sighting,
        };
        connection.health.send_replace(health);
        drop(connection);
        driver.finish()
    }
}
