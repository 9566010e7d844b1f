//! The hub's state and lifecycle.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use actix::{Actor, Addr, AsyncContext, Context, Supervised};
use tokio::{sync::oneshot, time::Instant};

use super::{
    member_backoff::MemberBackoff,
    messages::{AttachWatch, RetryPlacement},
};
use crate::runtime::supervisor::crashes;
use crate::{
    balancer::messages::AwaitReady,
    call::Caller,
    connection::EndpointId,
    runtime::{
        backoff::{Backoff, BackoffTimer},
        supervisor::supervise,
    },
    watch::engine::{
        watch_actor::{HubRestarted, WatchActor},
        watch_stream::{CloseStream, RemoveWatch, StreamActor, StreamSharing, WatchCount},
    },
};

/// Delays between attempts while members are ready but accept no stream, shortened by up to a half.
const RETRY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(10), Duration::from_millis(200)).jitter(0.5);

/// Settings of the streams that watches share. The methods of [`ClientBuilder`](crate::ClientBuilder) describe them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchStreamSettings {
    pub(crate) watches_per_stream: usize,
    /// Interval at which streams request the progress of their watches; `None` if they do not.
    pub(crate) progress_interval: Option<Duration>,
}

impl Default for WatchStreamSettings {
    fn default() -> Self {
        Self {
            watches_per_stream: 256,
            progress_interval: Some(Duration::from_secs(10)),
        }
    }
}

pub(crate) struct HubActor {
    pub(super) caller: Arc<Caller>,
    pub(super) settings: WatchStreamSettings,
    pub(super) last_watch: u64,
    pub(super) last_stream: u64,
    pub(super) watches: HashMap<u64, PlacedWatch>,
    pub(super) streams: Vec<SharedStream>,
    /// Requests of watches that wait until a member is usable.
    pub(super) queued: Vec<AttachWatch>,
    /// Requests of legs of hedged watches that wait until a member other than that of the other leg is usable.
    pub(super) waiting_legs: Vec<AttachWatch>,
    pub(super) legs_retry_pending: bool,
    pub(super) member_backoff: MemberBackoff,
    /// Members that choose watch ids themselves, as proxies do. Their streams carry few watches each.
    pub(super) id_choosing_members: HashSet<EndpointId>,
    pub(super) pending_retries: PendingRetries,
    pub(super) retry_backoff: BackoffTimer,
}

pub(super) struct PlacedWatch {
    pub(super) address: Addr<WatchActor>,
    pub(super) placement: Placement,
    /// Second leg, if this is the first leg of a hedged watch.
    pub(super) second_leg: Option<u64>,
}

impl PlacedWatch {
    pub(super) fn new(address: Addr<WatchActor>) -> Self {
        Self {
            address,
            placement: Placement::Unplaced,
            second_leg: None,
        }
    }
}

/// Where a watch runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// The watch has not requested a stream, or left it.
    Unplaced,
    /// The watch waits until a member is usable.
    Queued,
    /// The watch is on the stream with this number.
    OnStream(u64),
}

pub(super) struct SharedStream {
    pub(super) number: u64,
    pub(super) endpoint: EndpointId,
    pub(super) generation: u64,
    pub(super) require_leader: bool,
    pub(super) sharing: StreamSharing,
    /// Generation of the token that the stream was opened with.
    pub(super) token_generation: u64,
    pub(super) watch_count: WatchCount,
    pub(super) address: Addr<StreamActor>,
}

/// Whether a [`RetryPlacement`] is scheduled. A member without a leader may become ready long before a member with a
/// leader, so there is one flag for each.
#[derive(Default)]
pub(super) struct PendingRetries {
    with_leader: bool,
    leaderless: bool,
}

impl PendingRetries {
    /// Returns whether a retry that accepts members without a leader, or one that does not, is scheduled.
    pub(super) fn flag(&mut self, leaderless: bool) -> &mut bool {
        if leaderless {
            &mut self.leaderless
        } else {
            &mut self.with_leader
        }
    }
}

impl HubActor {
    /// Starts the hub on the current arbiter.
    pub(crate) fn start(caller: Arc<Caller>, settings: WatchStreamSettings) -> Addr<Self> {
        supervise(
            "watch hub",
            |_| {},
            |_| Self {
                caller,
                settings,
                last_watch: 0,
                last_stream: 0,
                watches: HashMap::new(),
                streams: Vec::new(),
                queued: Vec::new(),
                waiting_legs: Vec::new(),
                legs_retry_pending: false,
                member_backoff: MemberBackoff::default(),
                id_choosing_members: HashSet::new(),
                pending_retries: PendingRetries::default(),
                retry_backoff: RETRY_BACKOFF.start(),
            },
        )
    }

    pub(super) fn leave_stream(&mut self, watch: u64) {
        let Some(placed) = self.watches.get_mut(&watch) else {
            return;
        };
        match std::mem::replace(&mut placed.placement, Placement::Unplaced) {
            Placement::Unplaced => {}
            Placement::Queued => {
                self.queued.retain(|attach| attach.add.watch != watch);
                self.waiting_legs.retain(|attach| attach.add.watch != watch);
            }
            Placement::OnStream(number) => {
                if let Some(stream) = self.stream(number) {
                    stream.address.do_send(RemoveWatch { watch });
                }
            }
        }
    }

    pub(super) fn stream(&self, number: u64) -> Option<&SharedStream> {
        self.streams.iter().find(|stream| stream.number == number)
    }

    pub(super) fn close_stream(&mut self, number: u64) {
        let found = self
            .streams
            .iter()
            .position(|stream| stream.number == number);
        if let Some(index) = found {
            self.streams.swap_remove(index).address.do_send(CloseStream);
        }
    }

    /// Schedules a [`RetryPlacement`]: when the balancer reports a ready member, or after a delay if members are ready
    /// but blocked.
    pub(super) fn retry_later(&mut self, leaderless: bool, ctx: &mut Context<Self>) {
        if std::mem::replace(self.pending_retries.flag(leaderless), true) {
            return;
        }
        let hub = ctx.address().downgrade();
        let set = self.caller.ready_set.load();
        let now = Instant::now();
        // Half of the random number selects from the lower half of the jitter.
        let backoff = self.retry_backoff.next_delay(fastrand::f64() / 2.0);
        let delay = match self.member_backoff.next_allowed(now) {
            Some(allowed) => allowed - now,
            None => backoff,
        };
        let none_ready = set.ready.is_empty() && (!leaderless || set.leaderless.is_empty());
        let member_ready = (none_ready && !set.closed).then(|| {
            let (ready, member_ready) = oneshot::channel();
            self.caller
                .balancer
                .do_send(AwaitReady { ready, leaderless });
            member_ready
        });
        actix_rt::spawn(async move {
            // A balancer that panics drops the sender. The delay prevents a busy loop.
            let is_ready = match member_ready {
                Some(member_ready) => member_ready.await.is_ok(),
                None => false,
            };
            if !is_ready {
                tokio::time::sleep(delay).await;
            }
            if let Some(hub) = hub.upgrade() {
                hub.do_send(RetryPlacement { leaderless });
            }
        });
    }
}

impl Actor for HubActor {
    type Context = Context<Self>;

    /// Repairs the state after a panic, which lost one message. At the first start there is nothing to repair.
    fn started(&mut self, ctx: &mut Context<Self>) {
        let ended: Vec<u64> = self
            .streams
            .iter()
            .filter(|stream| stream.watch_count.is_closed())
            .map(|stream| stream.number)
            .collect();
        for number in ended {
            self.close_stream(number);
        }
        let stopped: Vec<u64> = self
            .watches
            .iter()
            .filter(|(_, placed)| !placed.address.connected())
            .map(|(watch, _)| *watch)
            .collect();
        for watch in stopped {
            self.leave_stream(watch);
            self.remove_watch(watch);
        }
        for placed in self.watches.values() {
            placed.address.do_send(HubRestarted);
        }
        self.pending_retries = PendingRetries::default();
        self.legs_retry_pending = false;
        if !self.waiting_legs.is_empty() {
            self.retry_waiting_legs_later(ctx);
        }
        for leaderless in [false, true] {
            let waits = |attach: &AttachWatch| attach.require_leader() != leaderless;
            if self.queued.iter().any(waits) {
                self.retry_later(leaderless, ctx);
            }
        }
    }
}

impl Supervised for HubActor {}

crashes!(HubActor);
