//! The actor that owns what the leases of a client share: their clock and their keepalive streams.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{
    Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, ResponseFuture,
    SpawnHandle, Supervised,
};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    Acked, Answered, CrashLease, Denied, End, Keep, KeepAliveDue, LostReason, Release, RenewOnce,
    Shutdown, StreamBroken, StreamEnded,
    actor::{LeaseActor, now},
    cell::LeaseCell,
    lane::{Lane, Look, Renewal},
    route::{self, Candidate, PENALTY},
    streams::KeepaliveStream,
};
use crate::{
    api::lease::revoke,
    auth::Token,
    balancer::AwaitReady,
    call::Caller,
    connection::{Connection, EndpointId, Suspicion},
    error::{Error, ErrorKind, Outcome},
    retry::table::{Passing, passing},
    supervisor::{Crash, crashes, supervise},
};

/// How long a silent member is probed because of us.
const SUSPECTED_FOR: Duration = Duration::from_secs(2);
/// How long a revoke may take that nobody waits for.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Revokes under way at once when the client is shut down.
const REVOKES_AT_ONCE: usize = 64;
/// A word with the balancer that failed is tried again after this.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long a new token may take.
const TOKEN_PATIENCE: Duration = Duration::from_secs(5);
/// Not a lease's id: wakes the keeper to tidy up.
const HOUSEKEEPING: i64 = 0;

/// Owns the lease actors, their timer and one keepalive stream a connection.
pub(crate) struct KeeperActor {
    caller: Arc<Caller>,
    lane: Lane,
    kept: HashMap<i64, Kept>,
    once: HashMap<i64, Once>,
    streams: Vec<KeepaliveStream>,
    next_stream: u64,
    /// Keepalives that wait for a member that can be asked.
    parked: Vec<Renewal>,
    awaiting: bool,
    penalties: HashMap<EndpointId, Instant>,
    suspicions: Vec<(Instant, Suspicion)>,
    revokes: Vec<JoinHandle<()>>,
    timer: Option<SpawnHandle>,
    closed: bool,
}

struct Kept {
    actor: Addr<LeaseActor>,
    cell: Arc<LeaseCell>,
    asked: Asked,
}

/// Who wants one keepalive.
#[derive(Default)]
struct Once {
    waiting: Vec<oneshot::Sender<Result<i64, Error>>>,
    asked: Asked,
}

/// Where the last keepalive of a lease went.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    stream: u64,
    member: Option<EndpointId>,
    parked: bool,
}

/// The timer's time has come.
#[derive(Message)]
#[rtype(result = "()")]
struct Due;

/// A member may be ready again.
#[derive(Message)]
#[rtype(result = "()")]
struct MemberReady;

impl KeeperActor {
    pub(crate) fn start(caller: Arc<Caller>) -> Addr<Self> {
        supervise(
            "lease keeper",
            |_| {},
            |ctx: &mut Context<Self>| Self {
                caller,
                lane: Lane::new(now(), ctx.address().downgrade()),
                kept: HashMap::new(),
                once: HashMap::new(),
                streams: Vec::new(),
                next_stream: 1,
                parked: Vec::new(),
                awaiting: false,
                penalties: HashMap::new(),
                suspicions: Vec::new(),
                revokes: Vec::new(),
                timer: None,
                closed: false,
            },
        )
    }

    fn rearm(&mut self, ctx: &mut Context<Self>) {
        if let Some(at) = self.lane.rearm() {
            if let Some(timer) = self.timer.take() {
                ctx.cancel_future(timer);
            }
            let wait = at.saturating_duration_since(now());
            self.timer = Some(ctx.notify_later(Due, wait));
        }
    }

    /// Sends what leases want to be sent.
    fn send(&mut self, renewals: Vec<Renewal>, ctx: &mut Context<Self>) {
        if renewals.is_empty() || self.closed {
            return;
        }
        let now = now();
        for renewal in &renewals {
            if renewal.elsewhere {
                self.judge(*renewal, now);
            }
        }
        let connections = self.caller.ready.load().ready.clone();
        self.leave_all_but(&connections, now);
        let candidates = self.candidates(&connections);
        for renewal in renewals {
            let Some(asked) = self.asked(renewal.lease) else {
                continue;
            };
            if asked.parked {
                continue;
            }
            let avoid = asked.member.filter(|_| renewal.elsewhere);
            let chosen = route::choose(&candidates, renewal.lease, avoid, now)
                .and_then(|place| self.stream_on(&connections[place], ctx, now));
            let asked = if let Some(stream) = chosen {
                let stream = &mut self.streams[stream];
                stream.add(renewal.lease, now);
                Asked {
                    stream: stream.number,
                    member: Some(stream.endpoint()),
                    parked: false,
                }
            } else {
                self.parked.push(renewal);
                Asked {
                    parked: true,
                    ..asked
                }
            };
            self.note_asked(renewal.lease, asked);
        }
        for number in self.numbers() {
            let flushed = self.stream(number).map(KeepaliveStream::flush);
            if let Some(Err(error)) = flushed {
                self.end_stream(number, Some(&error));
            }
        }
        if !self.parked.is_empty() {
            self.await_ready(ctx);
        }
    }

    /// A lease got no answer in time. Where its stream is silent altogether, it is given up for all.
    fn judge(&mut self, renewal: Renewal, now: Instant) {
        let Some(asked) = self.asked(renewal.lease) else {
            return;
        };
        let silent = self
            .stream(asked.stream)
            .is_some_and(|stream| stream.is_silent(renewal.patience, now));
        if !silent {
            return;
        }
        if let Some(stream) = self.stream(asked.stream) {
            let connection = stream.connection.clone();
            tracing::debug!(endpoint = %connection.endpoint, "keepalives are not answered");
            let until = now + SUSPECTED_FOR;
            self.suspicions.push((until, connection.suspect()));
            self.lane.wake(HOUSEKEEPING, until);
        }
        self.end_stream(asked.stream, None);
    }

    fn candidates(&self, connections: &[Arc<Connection>]) -> Vec<Candidate> {
        let sightings: Vec<_> = connections
            .iter()
            .map(|connection| connection.health().sighting)
            .collect();
        let leader = route::leader(sightings.iter().copied().flatten());
        connections
            .iter()
            .zip(&sightings)
            .map(|(connection, sighting)| Candidate {
                id: connection.id,
                leads: leader.is_some() && sighting.map(|seen| seen.member) == leader,
                penalty: self.penalties.get(&connection.id).copied(),
            })
            .collect()
    }

    /// The place of the stream on a connection, opened if there is none.
    fn stream_on(
        &mut self,
        connection: &Arc<Connection>,
        ctx: &mut Context<Self>,
        now: Instant,
    ) -> Option<usize> {
        let token = self.caller.shared.token.load();
        let open = self.streams.iter().position(|stream| {
            // A stream keeps the token it was opened with, and is left before that one ends.
            stream.is_on(connection) && stream.token.generation == token.generation
        });
        if open.is_some() {
            return open;
        }
        let token = Token::clone(&token);
        let number = self.next_stream;
        self.next_stream += 1;
        let keeper = ctx.address().downgrade();
        match KeepaliveStream::open(number, connection, token, keeper, now) {
            Ok(stream) => {
                self.streams.push(stream);
                Some(self.streams.len() - 1)
            }
            Err(error) => {
                tracing::debug!(endpoint = %connection.endpoint, %error, "no keepalive stream");
                self.penalties.insert(connection.id, now + PENALTY);
                None
            }
        }
    }

    /// A stream that ends takes what is in flight on it along: those leases ask another member at once.
    fn end_stream(&mut self, number: u64, error: Option<&Error>) {
        let Some(place) = self.place(number) else {
            return;
        };
        let stream = self.streams.swap_remove(place);
        let (endpoint, connection) = (stream.endpoint(), stream.connection.clone());
        self.penalties.insert(endpoint, now() + PENALTY);
        if let Some(error) = error {
            tracing::debug!(endpoint = %connection.endpoint, %error, "a keepalive stream ended");
            if error.kind() == ErrorKind::NoLeader {
                connection.doubt();
            } else if passing(error.kind()) == Passing::WithToken {
                self.penalties.remove(&endpoint);
                self.renew_token(stream.token.clone(), error.kind());
            }
        }
        let mut owed = stream.give_up();
        // Keepalives are handled one by one, so a refusal means the first that was not answered.
        if let Some(error) = error.filter(|error| error.kind() == ErrorKind::PermissionDenied)
            && let Some(refused) = owed.pop_front()
        {
            self.penalties.remove(&endpoint);
            if let Some(kept) = self.kept.get(&refused.lease) {
                kept.actor.do_send(Denied);
            }
            self.answer_once(refused.lease, &Err(error.clone()));
        }
        for owed in owed {
            if let Some(kept) = self.kept.get(&owed.lease)
                && kept.asked.stream == number
            {
                kept.actor.do_send(StreamBroken);
            }
            let broken = error.cloned().unwrap_or_else(unanswered);
            self.answer_once(owed.lease, &Err(broken));
        }
    }

    /// A stream keeps the token it was opened with: the next one is opened with the new token.
    fn renew_token(&self, refused: Token, why: ErrorKind) {
        let tokens = self.caller.tokens.clone();
        actix_rt::spawn(async move {
            let deadline = tokio::time::Instant::now() + TOKEN_PATIENCE;
            if let Err(error) = tokens.renewed(&refused, why, deadline).await {
                tracing::warn!(%error, "no new token for keepalives yet");
            }
        });
    }

    /// Leaves connections that are not ready any more: nothing keeps a removed member's open.
    fn leave_all_but(&mut self, ready: &[Arc<Connection>], now: Instant) {
        let mut place = 0;
        while let Some(stream) = self.streams.get(place) {
            let is_ready = ready.iter().any(|connection| stream.is_on(connection));
            if stream.is_idle(now) || (!is_ready && stream.owes_nothing()) {
                self.streams.swap_remove(place).finish();
            } else {
                place += 1;
            }
        }
    }

    fn await_ready(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.awaiting, true) {
            return;
        }
        let (ready, told) = oneshot::channel();
        self.caller.balancer.do_send(AwaitReady {
            ready,
            leaderless: false,
        });
        let keeper = ctx.address().downgrade();
        actix_rt::spawn(async move {
            if told.await.is_err() {
                tokio::time::sleep(ASK_AGAIN).await;
            }
            if let Some(keeper) = keeper.upgrade() {
                keeper.do_send(MemberReady);
            }
        });
    }

    fn answer_once(&mut self, lease: i64, answer: &Result<i64, Error>) {
        if let Some(once) = self.once.remove(&lease) {
            for waiting in once.waiting {
                let _ = waiting.send(answer.clone());
            }
        }
    }

    fn asked(&self, lease: i64) -> Option<Asked> {
        let kept = self.kept.get(&lease).map(|kept| kept.asked);
        kept.or_else(|| self.once.get(&lease).map(|once| once.asked))
    }

    fn note_asked(&mut self, lease: i64, asked: Asked) {
        if let Some(kept) = self.kept.get_mut(&lease) {
            kept.asked = asked;
        }
        if let Some(once) = self.once.get_mut(&lease) {
            once.asked = asked;
        }
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.streams
            .iter()
            .position(|stream| stream.number == number)
    }

    fn stream(&mut self, number: u64) -> Option<&mut KeepaliveStream> {
        self.streams
            .iter_mut()
            .find(|stream| stream.number == number)
    }

    fn numbers(&self) -> Vec<u64> {
        self.streams.iter().map(|stream| stream.number).collect()
    }

    fn tidy(&mut self, now: Instant) {
        self.suspicions.retain(|(until, _)| *until > now);
        self.penalties.retain(|_, until| *until > now);
    }

    fn revoke_later(&mut self, lease: i64) {
        let caller = self.caller.clone();
        self.revokes.retain(|revoke| !revoke.is_finished());
        self.revokes.push(actix_rt::spawn(async move {
            if let Err(error) = revoke::send(&caller, lease, REVOKE_TIMEOUT).await {
                tracing::debug!(lease, %error, "not revoked; it ends with its time");
            }
        }));
    }
}

fn unanswered() -> Error {
    Error::new(
        ErrorKind::MemberUnresponsive,
        Outcome::Unknown,
        "keepalives are not answered",
    )
}

impl Actor for KeeperActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // After a crash: the timer is gone, and a word of the leases may have been lost with a message.
        self.lane.disarm();
        self.timer = None;
        self.rearm(ctx);
        self.lane.retell();
        if std::mem::take(&mut self.awaiting) && !self.parked.is_empty() {
            self.await_ready(ctx);
        }
    }
}

impl Supervised for KeeperActor {}

crashes!(KeeperActor);

impl Handler<CrashLease> for KeeperActor {
    type Result = ();

    fn handle(&mut self, CrashLease(lease): CrashLease, _: &mut Context<Self>) {
        if let Some(kept) = self.kept.get(&lease) {
            kept.actor.do_send(Crash);
        }
    }
}

impl Handler<Keep> for KeeperActor {
    type Result = ();

    fn handle(&mut self, keep: Keep, _: &mut Context<Self>) {
        if self.closed {
            keep.cell
                .tell(super::LeaseEvent::Lost(LostReason::Shutdown));
            return;
        }
        let id = keep.cell.id();
        let actor = LeaseActor::start(keep.cell.clone(), keep.deadline, self.lane.clone());
        let kept = Kept {
            actor,
            cell: keep.cell,
            asked: Asked::default(),
        };
        if let Some(before) = self.kept.insert(id, kept) {
            before.actor.do_send(End(None));
        }
    }
}

impl Handler<Release> for KeeperActor {
    type Result = ();

    fn handle(&mut self, release: Release, _: &mut Context<Self>) {
        let id = release.cell.id();
        let ours = |kept: &Kept| Arc::ptr_eq(&kept.cell, &release.cell);
        if self.kept.get(&id).is_some_and(ours)
            && let Some(kept) = self.kept.remove(&id)
        {
            // Before its actor runs again: nothing is sent for it any more.
            self.lane.forget(id);
            self.parked.retain(|renewal| renewal.lease != id);
            kept.actor.do_send(End(None));
        }
        if release.revoke && !self.closed {
            self.revoke_later(id);
        }
    }
}

impl Handler<RenewOnce> for KeeperActor {
    type Result = ();

    fn handle(&mut self, renew: RenewOnce, ctx: &mut Context<Self>) {
        let once = self.once.entry(renew.lease).or_default();
        once.waiting.retain(|waiting| !waiting.is_closed());
        once.waiting.push(renew.answer);
        let renewal = Renewal {
            lease: renew.lease,
            elsewhere: renew.elsewhere,
            patience: crate::api::lease::ONCE_PATIENCE,
        };
        self.send(vec![renewal], ctx);
        self.rearm(ctx);
    }
}

impl Handler<Look> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: Look, ctx: &mut Context<Self>) {
        let renewals = self.lane.take();
        self.send(renewals, ctx);
        self.rearm(ctx);
    }
}

impl Handler<Due> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: Due, ctx: &mut Context<Self>) {
        let now = now();
        self.timer = None;
        self.lane.disarm();
        for lease in self.lane.expired(now) {
            if lease == HOUSEKEEPING {
                self.tidy(now);
            } else if let Some(kept) = self.kept.get(&lease) {
                kept.actor.do_send(KeepAliveDue);
            }
        }
        self.rearm(ctx);
    }
}

impl Handler<MemberReady> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: MemberReady, ctx: &mut Context<Self>) {
        self.awaiting = false;
        if self.caller.ready.load().closed {
            return;
        }
        let parked = std::mem::take(&mut self.parked);
        for renewal in &parked {
            if let Some(asked) = self.asked(renewal.lease) {
                self.note_asked(
                    renewal.lease,
                    Asked {
                        parked: false,
                        ..asked
                    },
                );
            }
        }
        self.send(parked, ctx);
        self.rearm(ctx);
    }
}

impl Handler<Answered> for KeeperActor {
    type Result = ();

    fn handle(&mut self, answered: Answered, _: &mut Context<Self>) {
        let now = now();
        let Some(place) = self.place(answered.stream) else {
            return;
        };
        for (lease, ttl) in answered.answers {
            let Some(owed) = self.streams[place].answered(lease, now) else {
                continue;
            };
            if let Some(kept) = self.kept.get(&lease) {
                kept.actor.do_send(Acked {
                    ttl,
                    sent_at: owed.sent_at,
                });
            }
            if !self.once.is_empty() {
                self.answer_once(lease, &Ok(ttl));
            }
        }
    }
}

impl Handler<StreamEnded> for KeeperActor {
    type Result = ();

    fn handle(&mut self, ended: StreamEnded, _: &mut Context<Self>) {
        self.end_stream(ended.stream, ended.error.as_ref());
    }
}

impl Handler<Shutdown> for KeeperActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, shutdown: Shutdown, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        self.closed = true;
        let mut doomed = Vec::new();
        for (id, kept) in self.kept.drain() {
            if kept.cell.revoke_on_drop() {
                doomed.push(id);
            }
            kept.actor.do_send(End(Some(LostReason::Shutdown)));
        }
        for stream in self.streams.drain(..) {
            stream.finish();
        }
        self.once.clear();
        self.suspicions.clear();
        let revokes = std::mem::take(&mut self.revokes);
        let caller = self.caller.clone();
        ctx.stop();
        Box::pin(async move {
            let _ = tokio::time::timeout(shutdown.patience, async {
                revoke_all(&caller, doomed, shutdown.patience).await;
                for revoke in revokes {
                    let _ = revoke.await;
                }
            })
            .await;
        })
    }
}

async fn revoke_all(caller: &Arc<Caller>, leases: Vec<i64>, patience: Duration) {
    let workers = leases.len().min(REVOKES_AT_ONCE);
    let leases = Rc::new(RefCell::new(leases));
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let (caller, leases) = (caller.clone(), leases.clone());
            actix_rt::spawn(async move {
                loop {
                    let Some(lease) = leases.borrow_mut().pop() else {
                        return;
                    };
                    let _ = revoke::send(&caller, lease, patience).await;
                }
            })
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
}
