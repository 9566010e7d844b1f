//! Shuts the keeper down and revokes leases. Leases whose holders have not stopped are left to expire.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use actix::{ActorContext, Context, Handler, ResponseFuture};

use super::{KeeperActor, messages::KeeperShutdown};
use crate::{
    call::Caller,
    lease::{
        LeaseLost,
        engine::{lease_actor::StopKeeping, lease_cell::LeaseCell},
        revoke,
    },
};

/// Timeout of a revoke that no caller waits for.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent revokes during shutdown.
const MAX_CONCURRENT_REVOKES: usize = 64;

impl KeeperActor {
    pub(super) fn revoke_in_background(&mut self, cell: Arc<LeaseCell>) {
        let caller = self.caller.clone();
        self.revokes.retain(|revoke| !revoke.is_finished());
        self.revokes.push(actix_rt::spawn(async move {
            // Held until the end: the drop of the client waits while there are leases to revoke.
            let lease = cell.id();
            if let Err(error) = revoke::send(&caller, lease, REVOKE_TIMEOUT).await {
                tracing::debug!(lease, %error, "failed to revoke a lease, which will expire");
            }
            drop(cell);
        }));
    }
}

impl Handler<KeeperShutdown> for KeeperActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, shutdown: KeeperShutdown, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        self.closed = true;
        let cluster = self.caller.context.cluster.get();
        let is_revocable =
            |cell: &LeaseCell| cell.revoke_on_drop() && !cell.is_of_other_cluster(cluster);
        let unkept = self.unkept.drain();
        let mut to_revoke: Vec<i64> = unkept
            .filter_map(|(id, cell)| is_revocable(&cell).then_some(id))
            .collect();
        for (id, slot) in self.slots.drain() {
            let Some(kept) = self.leases.remove(slot) else {
                continue;
            };
            if is_revocable(&kept.cell) && !shutdown.keep.contains(&id) {
                to_revoke.push(id);
            }
            kept.cell.report_lost(LeaseLost::Shutdown);
            kept.cell.close();
            kept.actor.do_send(StopKeeping);
        }
        for stream in self.streams.drain(..) {
            stream.finish();
        }
        self.once_waiters.clear();
        self.suspicions.clear();
        let revokes = std::mem::take(&mut self.revokes);
        let caller = self.caller.clone();
        ctx.stop();
        Box::pin(async move {
            let _ = tokio::time::timeout(shutdown.timeout, async {
                revoke_all(&caller, to_revoke, shutdown.timeout).await;
                for revoke in revokes {
                    let _ = revoke.await;
                }
            })
            .await;
        })
    }
}

async fn revoke_all(caller: &Arc<Caller>, leases: Vec<i64>, timeout: Duration) {
    let workers = leases.len().min(MAX_CONCURRENT_REVOKES);
    let leases = Rc::new(RefCell::new(leases));
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let (caller, leases) = (caller.clone(), leases.clone());
            actix_rt::spawn(async move {
                loop {
                    let Some(lease) = leases.borrow_mut().pop() else {
                        return;
                    };
                    let _ = revoke::send(&caller, lease, timeout).await;
                }
            })
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
}
