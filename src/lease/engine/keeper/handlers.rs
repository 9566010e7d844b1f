//! Handlers of the keeper, except its shutdown.

use std::sync::Arc;

use actix::{Context, Handler};

#[cfg(feature = "test-faults")]
use super::messages::{CrashLease, CrashWhenDue};
use super::{
    KeeperActor,
    messages::{
        KeepAliveResponsesReceived, KeepAliveStreamEnded, KeepLease, KeeperTimerFired,
        KeptLeasesChanged, LeaseOrigin, OnceRenewal, ReadyWaitEnded, RegisterLease, ReleaseLease,
        RenewLeaseOnce,
    },
};
use crate::lease::{
    ONCE_RESPONSE_TIMEOUT,
    engine::{
        clock::now,
        kept_leases::{LastKeepAlive, QueuedKeepAlive},
        lease_actor::StopKeeping,
        lease_cell::LeaseCell,
    },
};
#[cfg(feature = "test-faults")]
use crate::runtime::supervisor::Crash;

impl Handler<KeepLease> for KeeperActor {
    type Result = ();

    fn handle(&mut self, mut keep: KeepLease, _: &mut Context<Self>) {
        if self.closed {
            return;
        }
        let Some(cell) = keep.lease.receive() else {
            return;
        };
        let id = cell.id();
        self.supersede(id, keep.origin);
        let slot = self.leases.insert(cell, keep.deadline);
        self.slots.insert(id, slot);
    }
}

impl Handler<RegisterLease> for KeeperActor {
    type Result = ();

    fn handle(&mut self, RegisterLease { cell }: RegisterLease, _: &mut Context<Self>) {
        let id = cell.id();
        self.supersede(id, LeaseOrigin::Granted);
        self.unkept.insert(id, cell);
    }
}

impl Handler<ReleaseLease> for KeeperActor {
    type Result = ();

    fn handle(&mut self, release: ReleaseLease, _: &mut Context<Self>) {
        let id = release.cell.id();
        // The id may belong to another lease by now.
        let is_same = |cell: &Arc<LeaseCell>| Arc::ptr_eq(cell, &release.cell);
        let slot = self.slots.get(&id).copied().filter(|slot| {
            let same = self.leases.with(*slot, |kept| is_same(&kept.cell));
            same == Some(true)
        });
        let unkept = self.unkept.get(&id).is_some_and(is_same);
        if unkept {
            self.unkept.remove(&id);
        }
        if let Some(slot) = slot {
            self.slots.remove(&id);
            // Removed before the actor runs again, so that no keepalive follows.
            self.waiting_for_member
                .retain(|keepalive| keepalive.slot != Some(slot));
            if let Some(kept) = self.leases.remove(slot) {
                kept.actor.do_send(StopKeeping);
            }
        }
        let cluster = self.caller.context.cluster.get();
        let revocable = release.revoke && !release.cell.is_of_other_cluster(cluster);
        if revocable && (unkept || slot.is_some()) && !self.closed {
            self.revoke_in_background(release.cell);
        }
    }
}

impl Handler<RenewLeaseOnce> for KeeperActor {
    type Result = ();

    fn handle(&mut self, renew: RenewLeaseOnce, ctx: &mut Context<Self>) {
        let waiters = self.once_waiters.entry(renew.lease).or_default();
        waiters.senders.retain(|sender| !sender.is_closed());
        waiters.senders.push(renew.response);
        let keepalive = QueuedKeepAlive {
            lease: renew.lease,
            slot: self.slots.get(&renew.lease).copied(),
            elsewhere: renew.elsewhere,
            response_timeout: ONCE_RESPONSE_TIMEOUT,
        };
        self.send(vec![keepalive], now(), ctx);
        self.rearm_timer(ctx);
    }
}

impl Handler<KeptLeasesChanged> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: KeptLeasesChanged, ctx: &mut Context<Self>) {
        let keepalives = self.leases.take_queue();
        self.send(keepalives, now(), ctx);
        self.rearm_timer(ctx);
    }
}

impl Handler<KeeperTimerFired> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: KeeperTimerFired, ctx: &mut Context<Self>) {
        let now = now();
        self.timer = None;
        self.leases.clear_timer();
        let mut keepalives = Vec::new();
        let stream_check = self.leases.check_due(now, &mut keepalives);
        #[cfg(feature = "test-faults")]
        {
            let crash = !keepalives.is_empty() && std::mem::take(&mut self.crash_when_due);
            assert!(!crash, "crash requested by a test");
        }
        self.send(keepalives, now, ctx);
        if stream_check {
            self.check_streams(now);
        }
        self.rearm_timer(ctx);
    }
}

impl Handler<ReadyWaitEnded> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: ReadyWaitEnded, ctx: &mut Context<Self>) {
        self.awaiting_ready = false;
        if self.caller.ready_set.load().closed {
            return;
        }
        let now = now();
        let keepalives = std::mem::take(&mut self.waiting_for_member);
        for keepalive in &keepalives {
            if let Some(last) = self.last_keepalive(keepalive) {
                let waiting = false;
                self.set_last_keepalive(keepalive, LastKeepAlive { waiting, ..last });
                if let Some(slot) = keepalive.slot {
                    self.leases.handle_delayed_send(slot, now);
                }
            }
        }
        self.send(keepalives, now, ctx);
        self.rearm_timer(ctx);
    }
}

impl Handler<KeepAliveResponsesReceived> for KeeperActor {
    type Result = ();

    fn handle(&mut self, received: KeepAliveResponsesReceived, ctx: &mut Context<Self>) {
        let now = now();
        let leases = self.leases.clone();
        for (lease, ttl) in received.responses {
            let Some(stream) = self.stream_mut(received.stream) else {
                return;
            };
            let Some(keepalive) = stream.match_response(lease, now) else {
                continue;
            };
            if let Some(slot) = keepalive.slot {
                leases.handle_response(slot, ttl, keepalive.sent_at, now);
            }
            if !self.once_waiters.is_empty() {
                let sent_at = keepalive.sent_at;
                self.respond_once(lease, &Ok(OnceRenewal { ttl, sent_at }));
            }
        }
        self.rearm_timer(ctx);
    }
}

impl Handler<KeepAliveStreamEnded> for KeeperActor {
    type Result = ();

    fn handle(&mut self, ended: KeepAliveStreamEnded, _: &mut Context<Self>) {
        self.end_stream(ended.stream, ended.error.as_ref());
    }
}

#[cfg(feature = "test-faults")]
impl Handler<CrashLease> for KeeperActor {
    type Result = ();

    fn handle(&mut self, CrashLease(lease): CrashLease, _: &mut Context<Self>) {
        if let Some(slot) = self.slots.get(&lease) {
            self.leases.with(*slot, |kept| kept.actor.do_send(Crash));
        }
    }
}

#[cfg(feature = "test-faults")]
impl Handler<CrashWhenDue> for KeeperActor {
    type Result = ();

    fn handle(&mut self, _: CrashWhenDue, _: &mut Context<Self>) {
        self.crash_when_due = true;
    }
}
