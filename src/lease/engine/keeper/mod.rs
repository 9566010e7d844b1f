//! The actor that owns what the leases of a client share: their clock and their keepalive streams.

mod answering;
mod ending;
mod sending;

use std::{collections::HashMap, sync::Arc, time::Instant};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, SpawnHandle, Supervised};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    Announce, CrashWhenDue, End, Keep, KeepAliveDue, RenewOnce,
    actor::now,
    cell::LeaseCell,
    lane::{Lane, Look},
    places::{Asked, Place, Renewal},
    streams::KeepaliveStream,
};
use crate::{
    call::Caller,
    connection::{EndpointId, Suspicion},
    error::Error,
    lease::{LeaseLost, ONCE_PATIENCE, events::LeaseEvent},
    runtime::supervisor::{crashes, supervise},
};

/// Owns the lease actors, their timer and one keepalive stream a connection.
pub(crate) struct KeeperActor {
    caller: Arc<Caller>,
    lane: Lane,
    kept: HashMap<i64, Place>,
    /// Leases that are not kept, but to be revoked, or granted with an id of the user's.
    unkept: HashMap<i64, Arc<LeaseCell>>,
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
    crash_when_due: bool,
}

/// Who wants one keepalive.
#[derive(Default)]
struct Once {
    waiting: Vec<oneshot::Sender<Result<i64, Error>>>,
    asked: Asked,
}

/// The timer's time has come.
#[derive(Message)]
#[rtype(result = "()")]
struct Due;

impl KeeperActor {
    pub(crate) fn start(caller: Arc<Caller>) -> Addr<Self> {
        supervise(
            "lease keeper",
            |_| {},
            |ctx: &mut Context<Self>| Self {
                caller,
                lane: Lane::new(now(), ctx.address().downgrade()),
                kept: HashMap::new(),
                unkept: HashMap::new(),
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
                crash_when_due: false,
            },
        )
    }

    /// A lease was granted with an id that another one had: that one is gone from the server.
    fn supersede(&mut self, id: i64) {
        self.unkept.remove(&id);
        let before = self.kept.remove(&id);
        if let Some(before) = before.and_then(|place| self.lane.leave(place)) {
            let early = now() < before.cell.deadline();
            before.cell.tell(LeaseEvent::Lost(LeaseLost::gone(early)));
            before.cell.close();
            before.actor.do_send(End);
        }
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

    fn stream(&mut self, number: u64) -> Option<&mut KeepaliveStream> {
        let mut streams = self.streams.iter_mut();
        streams.find(|stream| stream.number == number)
    }
}

impl Actor for KeeperActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // After a crash the timer is gone, and what the crash interrupted was not done.
        self.lane.disarm();
        self.timer = None;
        self.lane.recover();
        if !self.streams.is_empty() {
            self.lane.make_rounds(now());
        }
        self.rearm(ctx);
        if std::mem::take(&mut self.awaiting) && !self.parked.is_empty() {
            self.await_ready(ctx);
        }
    }
}

impl Supervised for KeeperActor {}

crashes!(KeeperActor);

#[cfg(feature = "test-faults")]
impl Handler<super::CrashLease> for KeeperActor {
    type Result = ();

    fn handle(&mut self, super::CrashLease(lease): super::CrashLease, _: &mut Context<Self>) {
        let place = self.kept.get(&lease).copied();
        if let Some(actor) = place.and_then(|place| self.lane.actor(place)) {
            actor.do_send(crate::runtime::supervisor::Crash);
        }
    }
}

impl Handler<CrashWhenDue> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: CrashWhenDue, _: &mut Context<Self>) {
        self.crash_when_due = true;
    }
}

impl Handler<Keep> for KeeperActor {
    type Result = ();

    fn handle(&mut self, mut keep: Keep, _: &mut Context<Self>) {
        if self.closed {
            return;
        }
        let Some(cell) = keep.cell.take() else {
            return;
        };
        let id = cell.id();
        self.supersede(id);
        let place = self.lane.enter(cell, keep.deadline);
        self.kept.insert(id, place);
    }
}

impl Handler<Announce> for KeeperActor {
    type Result = ();

    fn handle(&mut self, Announce { cell }: Announce, _: &mut Context<Self>) {
        let id = cell.id();
        self.supersede(id);
        self.unkept.insert(id, cell);
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
            place: self.kept.get(&renew.lease).copied(),
            elsewhere: renew.elsewhere,
            patience: ONCE_PATIENCE,
        };
        self.send(vec![renewal], now(), ctx);
        self.rearm(ctx);
    }
}

impl Handler<Look> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: Look, ctx: &mut Context<Self>) {
        let renewals = self.lane.take();
        self.send(renewals, now(), ctx);
        self.rearm(ctx);
    }
}

impl Handler<Due> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: Due, ctx: &mut Context<Self>) {
        let now = now();
        self.timer = None;
        self.lane.disarm();
        let mut renewals = Vec::new();
        let rounds = self
            .lane
            .due(now, &mut renewals, |actor| actor.do_send(KeepAliveDue));
        let crash = !renewals.is_empty() && std::mem::take(&mut self.crash_when_due);
        assert!(!crash, "asked to crash");
        self.send(renewals, now, ctx);
        if rounds {
            self.make_rounds(now);
        }
        self.rearm(ctx);
    }
}
