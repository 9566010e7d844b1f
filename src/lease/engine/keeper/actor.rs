//! State and lifecycle of the keeper.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, AsyncContext, Context, SpawnHandle, Supervised};
use tokio::{sync::oneshot, task::JoinHandle};

use super::messages::{KeeperTimerFired, LeaseOrigin, OnceRenewal};
use crate::runtime::supervisor::crashes;
use crate::{
    call::Caller,
    connection::{EndpointId, SuspicionGuard},
    error::Error,
    lease::{
        LeaseLost,
        engine::{
            clock::now,
            keepalive_stream::KeepAliveStream,
            kept_leases::{KeptLeases, LastKeepAlive, QueuedKeepAlive},
            lease_actor::StopKeeping,
            lease_cell::LeaseCell,
            lease_slab::LeaseSlot,
        },
    },
    runtime::supervisor::supervise,
};

/// Longest delay of the timer. Timers stop while the machine is suspended, and the clock of leases does not.
const MAX_TIMER_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct KeeperActor {
    pub(super) caller: Arc<Caller>,
    pub(super) leases: KeptLeases,
    pub(super) slots: HashMap<i64, LeaseSlot>,
    /// Registered leases that are not kept alive.
    pub(super) unkept: HashMap<i64, Arc<LeaseCell>>,
    pub(super) once_waiters: HashMap<i64, OnceWaiters>,
    pub(super) streams: Vec<KeepAliveStream>,
    pub(super) next_stream: u64,
    /// Keepalives that wait for a ready member.
    pub(super) waiting_for_member: Vec<QueuedKeepAlive>,
    /// Whether a [`ReadyWaitEnded`](super::messages::ReadyWaitEnded) will arrive.
    pub(super) awaiting_ready: bool,
    /// Time until which each member is avoided.
    pub(super) penalties: HashMap<EndpointId, Instant>,
    /// Reports of silent members, with the time at which they are withdrawn.
    pub(super) suspicions: Vec<(Instant, SuspicionGuard)>,
    pub(super) revokes: Vec<JoinHandle<()>>,
    pub(super) timer: Option<SpawnHandle>,
    pub(super) closed: bool,
    #[cfg(feature = "test-faults")]
    pub(super) crash_when_due: bool,
}

/// Callers that wait for one keepalive of a lease (`keep_alive_once`).
#[derive(Default)]
pub(super) struct OnceWaiters {
    pub(super) senders: Vec<oneshot::Sender<Result<OnceRenewal, Error>>>,
    pub(super) last_keepalive: LastKeepAlive,
}

impl KeeperActor {
    pub(crate) fn start(caller: Arc<Caller>) -> Addr<Self> {
        supervise(
            "lease keeper",
            |_| {},
            |ctx: &mut Context<Self>| Self {
                caller,
                leases: KeptLeases::new(now(), ctx.address().downgrade()),
                slots: HashMap::new(),
                unkept: HashMap::new(),
                once_waiters: HashMap::new(),
                streams: Vec::new(),
                next_stream: 1,
                waiting_for_member: Vec::new(),
                awaiting_ready: false,
                penalties: HashMap::new(),
                suspicions: Vec::new(),
                revokes: Vec::new(),
                timer: None,
                closed: false,
                #[cfg(feature = "test-faults")]
                crash_when_due: false,
            },
        )
    }

    /// Ends the handle of an earlier lease with the id of a lease of this origin.
    pub(super) fn supersede(&mut self, id: i64, origin: LeaseOrigin) {
        self.unkept.remove(&id);
        let slot = self.slots.remove(&id);
        if let Some(earlier) = slot.and_then(|slot| self.leases.remove(slot)) {
            let reason = match origin {
                LeaseOrigin::Adopted => LeaseLost::TakenOver,
                LeaseOrigin::Granted => {
                    LeaseLost::revoked_or_expired(now() < earlier.cell.deadline())
                }
            };
            earlier.cell.report_lost(reason);
            earlier.cell.close();
            earlier.actor.do_send(StopKeeping);
        }
    }

    /// Restarts the timer if its time changed.
    pub(super) fn rearm_timer(&mut self, ctx: &mut Context<Self>) {
        if let Some(at) = self.leases.timer_change() {
            if let Some(timer) = self.timer.take() {
                ctx.cancel_future(timer);
            }
            let delay = at.saturating_duration_since(now());
            let delay = delay.min(MAX_TIMER_DELAY);
            self.timer = Some(ctx.notify_later(KeeperTimerFired, delay));
        }
    }
}

impl Actor for KeeperActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // A panic cancels the timer and interrupts the handler: checks are repeated.
        self.leases.clear_timer();
        self.timer = None;
        self.leases.recover_from_panic();
        if !self.streams.is_empty() {
            self.leases.schedule_stream_check(now());
        }
        self.rearm_timer(ctx);
        if std::mem::take(&mut self.awaiting_ready) && !self.waiting_for_member.is_empty() {
            self.await_ready(ctx);
        }
    }
}

impl Supervised for KeeperActor {}

crashes!(KeeperActor);
