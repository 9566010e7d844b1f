//! The actor of one lease.

use std::{sync::Arc, time::Instant};

use actix::{Actor, ActorContext, Addr, Context, Handler, Supervised};

use super::{
    Acked, Denied, End, KeepAliveDue, StreamBroken,
    cell::LeaseCell,
    deadline::{Step, Told},
    lane::Lane,
    places::{Place, Renewal},
};
use crate::{
    lease::{LeaseLost, events::LeaseEvent},
    runtime::supervisor::{crashes, supervise},
};

/// Decides for one lease whatever is not routine. Its deadline is in the lane, where a crash leaves it alone.
pub(crate) struct LeaseActor {
    cell: Arc<LeaseCell>,
    place: Place,
    lane: Lane,
}

impl LeaseActor {
    pub(crate) fn start(cell: Arc<LeaseCell>, place: Place, lane: Lane) -> Addr<Self> {
        supervise("lease", |_| {}, |_| Self { cell, place, lane })
    }

    /// Does what is due, and asks to be woken for what comes next.
    fn proceed(&mut self, ctx: &mut Context<Self>) {
        let now = now();
        loop {
            let step = self.lane.deadline(self.place, |deadline| {
                (deadline.tick(now, fastrand::f64()), deadline.patience())
            });
            match step {
                Some((Step::Send { elsewhere }, patience)) => self.lane.send(Renewal {
                    lease: self.cell.id(),
                    place: Some(self.place),
                    elsewhere,
                    patience,
                }),
                Some((Step::AtRisk { deadline }, _)) => {
                    self.cell.tell(LeaseEvent::AtRisk { deadline });
                }
                Some((Step::Lost(reason), _)) => return self.lost(reason, ctx),
                Some((Step::Wait { until }, _)) => return self.lane.wake(self.place, until),
                Some((Step::Ended, _)) | None => return,
            }
        }
    }

    fn lost(&mut self, reason: LeaseLost, ctx: &mut Context<Self>) {
        tracing::info!(lease = self.cell.id(), ?reason, "a lease is lost");
        self.cell.tell(LeaseEvent::Lost(reason));
        self.leave(ctx);
    }

    fn leave(&mut self, ctx: &mut Context<Self>) {
        self.lane.rest(self.place);
        ctx.stop();
    }
}

/// The deadline's clock; a test may have paused it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Actor for LeaseActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let ended = self
            .lane
            .deadline(self.place, |deadline| deadline.is_ended());
        if ended == Some(false) {
            self.proceed(ctx);
        } else {
            // It crashed on its way out.
            self.leave(ctx);
        }
    }
}

impl Supervised for LeaseActor {}

crashes!(LeaseActor);

impl Handler<KeepAliveDue> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: KeepAliveDue, ctx: &mut Context<Self>) {
        self.proceed(ctx);
    }
}

impl Handler<Acked> for LeaseActor {
    type Result = ();

    fn handle(&mut self, acked: Acked, ctx: &mut Context<Self>) {
        let told = self.lane.deadline(self.place, |deadline| {
            let told = deadline.acked(acked.ttl, acked.sent_at, now(), fastrand::f64());
            (told, deadline.ttl())
        });
        match told {
            Some((Some(Told::Renewed { deadline }), ttl)) => {
                self.cell.note(ttl, deadline);
                self.cell.tell(LeaseEvent::Renewed { deadline });
                self.proceed(ctx);
            }
            Some((Some(Told::Lost(reason)), _)) => self.lost(reason, ctx),
            Some((None, _)) | None => self.proceed(ctx),
        }
    }
}

impl Handler<StreamBroken> for LeaseActor {
    type Result = ();

    fn handle(&mut self, broken: StreamBroken, ctx: &mut Context<Self>) {
        self.lane.deadline(self.place, |deadline| {
            deadline.unsent(broken.sent_at, now(), fastrand::f64());
        });
        self.proceed(ctx);
    }
}

impl Handler<Denied> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: Denied, ctx: &mut Context<Self>) {
        let denied = self.lane.deadline(self.place, |deadline| {
            deadline.end(LeaseLost::PermissionDenied)
        });
        if let Some(Some(reason)) = denied {
            self.lost(reason, ctx);
        }
    }
}

impl Handler<End> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: End, ctx: &mut Context<Self>) {
        self.leave(ctx);
    }
}
