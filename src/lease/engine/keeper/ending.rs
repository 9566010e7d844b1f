//! The end of leases: handles that are gone, and the client's shutdown.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use actix::{ActorContext, Context, Handler, ResponseFuture};

use super::KeeperActor;
use crate::{
    call::Caller,
    lease::{
        LeaseEvent, LeaseLost,
        engine::{End, Release, Shutdown, cell::LeaseCell, places::Kept},
        revoke,
    },
};

/// How long a revoke may take that nobody waits for.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Revokes under way at once when the client is shut down.
const REVOKES_AT_ONCE: usize = 64;

impl KeeperActor {
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

impl Handler<Release> for KeeperActor {
    type Result = ();

    fn handle(&mut self, release: Release, _: &mut Context<Self>) {
        let id = release.cell.id();
        // By now another lease may have its id.
        let is_meant = |cell: &Arc<LeaseCell>| Arc::ptr_eq(cell, &release.cell);
        let place = self.kept.get(&id).copied().filter(|place| {
            let ours = |kept: &mut Kept| is_meant(&kept.cell);
            self.lane.kept(*place, ours) == Some(true)
        });
        let unkept = self.unkept.get(&id).is_some_and(is_meant);
        if unkept {
            self.unkept.remove(&id);
        }
        if let Some(place) = place {
            self.kept.remove(&id);
            // Before its actor runs again: nothing is sent for it any more.
            self.parked.retain(|renewal| renewal.place != Some(place));
            if let Some(kept) = self.lane.leave(place) {
                kept.actor.do_send(End);
            }
        }
        if release.revoke && (unkept || place.is_some()) && !self.closed {
            self.revoke_later(id);
        }
    }
}

impl Handler<Shutdown> for KeeperActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, shutdown: Shutdown, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        self.closed = true;
        let unkept = self.unkept.drain();
        let mut doomed: Vec<i64> = unkept
            .filter_map(|(id, cell)| cell.revoke_on_drop().then_some(id))
            .collect();
        for (id, place) in self.kept.drain() {
            let Some(kept) = self.lane.leave(place) else {
                continue;
            };
            if kept.cell.revoke_on_drop() {
                doomed.push(id);
            }
            kept.cell.tell(LeaseEvent::Lost(LeaseLost::Shutdown));
            kept.cell.close();
            kept.actor.do_send(End);
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
