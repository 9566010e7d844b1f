//! Sends keepalives: selects a member for each and adds it to the stream of that member.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{AsyncContext, Context};
use tokio::sync::oneshot;

use super::{KeeperActor, messages::ReadyWaitEnded};
use crate::{
    balancer::messages::AwaitReady,
    connection::Connection,
    lease::engine::{
        clock::now,
        keepalive_route::{self, PENALTY, RouteCandidate},
        kept_leases::{LastKeepAlive, QueuedKeepAlive},
        lease_actor::ClusterLeft,
    },
};

/// Delay before the next request to the balancer after one that failed, or while ready members allow no more streams.
const AWAIT_READY_RETRY: Duration = Duration::from_millis(50);

impl KeeperActor {
    /// Sends keepalives in one batch per stream.
    pub(super) fn send(
        &mut self,
        keepalives: Vec<QueuedKeepAlive>,
        now: Instant,
        ctx: &mut Context<Self>,
    ) {
        if keepalives.is_empty() || self.closed {
            return;
        }
        for keepalive in keepalives.iter().filter(|keepalive| keepalive.elsewhere) {
            self.reset_silent_stream(keepalive, now);
        }
        let connections = self.caller.ready_set.load().ready.clone();
        self.close_unused_streams(&connections, now);
        let candidates = self.candidates(&connections);
        let mut shortest_timeout = None;
        let cluster = self.caller.context.cluster.get();
        for keepalive in keepalives {
            let ended = self.end_lease_of_other_cluster(&keepalive, cluster);
            if ended && !self.once_waiters.contains_key(&keepalive.lease) {
                continue;
            }
            let Some(last) = self.last_keepalive(&keepalive) else {
                continue;
            };
            if last.waiting {
                // No stream check covers a keepalive that is not sent again: the lease needs its own timer.
                if let Some(slot) = keepalive.slot {
                    self.leases.check_as_planned(slot);
                }
                continue;
            }
            let avoid = last.member.filter(|_| keepalive.elsewhere);
            let chosen = keepalive_route::choose(&candidates, keepalive.lease, avoid, now)
                .and_then(|index| self.stream_on(&connections[index], ctx, now));
            if let Some(stream) = chosen {
                let stream = &mut self.streams[stream];
                stream.add(&keepalive, now);
                let last = LastKeepAlive {
                    stream: stream.number,
                    member: Some(stream.endpoint()),
                    waiting: false,
                };
                self.set_last_keepalive(&keepalive, last);
                let timeouts = shortest_timeout.into_iter();
                shortest_timeout = timeouts.chain([keepalive.response_timeout]).min();
            } else {
                self.wait_for_member(keepalive, last);
            }
        }
        if let Some(timeout) = shortest_timeout {
            self.leases.schedule_stream_check(now + timeout);
        }
        self.flush_streams();
        if !self.waiting_for_member.is_empty() {
            self.await_ready(ctx);
        }
    }

    /// Ends the lease of a keepalive if another cluster granted it, because a lease with the same id in this cluster is
    /// another lease. Returns whether the lease ended.
    fn end_lease_of_other_cluster(&self, keepalive: &QueuedKeepAlive, cluster: u64) -> bool {
        let ended = keepalive.slot.and_then(|slot| {
            self.leases.with(slot, |kept| {
                let ended = kept.cell.is_of_other_cluster(cluster);
                if ended {
                    kept.actor.do_send(ClusterLeft);
                }
                ended
            })
        });
        ended == Some(true)
    }

    fn flush_streams(&mut self) {
        let flushed = self.streams.iter_mut().map(|stream| {
            let result = stream.flush();
            (stream.number, result)
        });
        let failed: Vec<_> = flushed
            .filter_map(|(number, result)| Some((number, result.err()?)))
            .collect();
        for (number, error) in failed {
            self.end_stream(number, Some(&error));
        }
    }

    /// Holds a keepalive until a member is ready. Its lease is checked as planned meanwhile.
    fn wait_for_member(&mut self, keepalive: QueuedKeepAlive, last: LastKeepAlive) {
        let waiting = true;
        self.set_last_keepalive(&keepalive, LastKeepAlive { waiting, ..last });
        if let Some(slot) = keepalive.slot {
            self.leases.check_as_planned(slot);
        }
        self.waiting_for_member.push(keepalive);
    }

    fn candidates(&self, connections: &[Arc<Connection>]) -> Vec<RouteCandidate> {
        let statuses: Vec<_> = connections
            .iter()
            .map(|connection| connection.health().status)
            .collect();
        let leader = keepalive_route::leader(statuses.iter().copied().flatten());
        connections
            .iter()
            .zip(&statuses)
            .map(|(connection, status)| RouteCandidate {
                id: connection.id,
                is_leader: leader.is_some() && status.map(|status| status.member) == leader,
                penalty: if connection.refuses_tokens() {
                    Some(now() + PENALTY)
                } else {
                    self.penalties.get(&connection.id).copied()
                },
            })
            .collect()
    }

    /// Requests a [`ReadyWaitEnded`] for when a member is ready.
    pub(super) fn await_ready(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.awaiting_ready, true) {
            return;
        }
        let (ready, wait) = oneshot::channel();
        self.caller.balancer.do_send(AwaitReady {
            ready,
            leaderless: false,
        });
        let keeper = ctx.address().downgrade();
        let streams_refused = !self.caller.ready_set.load().ready.is_empty();
        actix_rt::spawn(async move {
            if wait.await.is_err() || streams_refused {
                tokio::time::sleep(AWAIT_READY_RETRY).await;
            }
            if let Some(keeper) = keeper.upgrade() {
                keeper.do_send(ReadyWaitEnded);
            }
        });
    }

    /// Returns the destination of the last keepalive, or `None` if this keepalive is not needed any more.
    pub(super) fn last_keepalive(&mut self, keepalive: &QueuedKeepAlive) -> Option<LastKeepAlive> {
        let kept = keepalive.slot.and_then(|slot| {
            self.leases.with(slot, |kept| {
                (!kept.deadline.is_ended()).then_some(kept.last_keepalive)
            })
        });
        if let Some(last) = kept.flatten() {
            return Some(last);
        }
        let waiters = self.once_waiters.get(&keepalive.lease)?;
        if waiters.senders.iter().all(oneshot::Sender::is_closed) {
            self.once_waiters.remove(&keepalive.lease);
            return None;
        }
        Some(waiters.last_keepalive)
    }

    pub(super) fn set_last_keepalive(&mut self, keepalive: &QueuedKeepAlive, last: LastKeepAlive) {
        if let Some(slot) = keepalive.slot {
            self.leases.with(slot, |kept| kept.last_keepalive = last);
        }
        if !self.once_waiters.is_empty()
            && let Some(waiters) = self.once_waiters.get_mut(&keepalive.lease)
        {
            waiters.last_keepalive = last;
        }
    }
}
