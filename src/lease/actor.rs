//! The actor of one lease.

use std::{sync::Arc, time::Instant};

use actix::{Actor, ActorContext, Addr, Context, Handler, Supervised};

use super::{
    Acked, Denied, End, KeepAliveDue, LostReason, StreamBroken,
    cell::LeaseCell,
    deadline::{Deadline, Step, Told},
    events::LeaseEvent,
    lane::{Lane, Renewal},
};
use crate::supervisor::{crashes, supervise};

/// Owns the deadline of one lease. A restart after a crash keeps it.
pub(crate) struct LeaseActor {
    cell: Arc<LeaseCell>,
    deadline: Deadline,
    lane: Lane,
}

impl LeaseActor {
    pub(crate) fn start(cell: Arc<LeaseCell>, deadline: Deadline, lane: Lane) -> Addr<Self> {
        supervise(
            "lease",
            |_| {},
            |_| Self {
                cell,
                deadline,
                lane,
            },
        )
    }

    /// Does what is due, and asks to be woken for what comes next.
    fn proceed(&mut self, ctx: &mut Context<Self>) {
        let now = now();
        loop {
            match self.deadline.tick(now, fastrand::f64()) {
                Step::Send { elsewhere } => self.lane.send(Renewal {
                    lease: self.cell.id(),
                    elsewhere,
                    patience: self.deadline.patience(),
                }),
                Step::AtRisk { deadline } => self.cell.tell(LeaseEvent::AtRisk { deadline }),
                Step::Lost(reason) => return self.lost(reason, ctx),
                Step::Wait { until } => return self.lane.wake(self.cell.id(), until),
                Step::Ended => return,
            }
        }
    }

    fn lost(&mut self, reason: LostReason, ctx: &mut Context<Self>) {
        tracing::info!(lease = self.cell.id(), ?reason, "a lease is lost");
        self.cell.tell(LeaseEvent::Lost(reason));
        self.leave(ctx);
    }

    fn leave(&mut self, ctx: &mut Context<Self>) {
        self.lane.forget(self.cell.id());
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
        if self.deadline.is_ended() {
            // It crashed on its way out.
            self.leave(ctx);
        } else {
            self.proceed(ctx);
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
        let told = self
            .deadline
            .acked(acked.ttl, acked.sent_at, now(), fastrand::f64());
        match told {
            Some(Told::Renewed { deadline }) => {
                self.cell.note(self.deadline.ttl(), deadline);
                self.cell.tell(LeaseEvent::Renewed { deadline });
                self.proceed(ctx);
            }
            Some(Told::Lost(reason)) => self.lost(reason, ctx),
            None => self.proceed(ctx),
        }
    }
}

impl Handler<StreamBroken> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: StreamBroken, ctx: &mut Context<Self>) {
        self.deadline.unsent(now(), fastrand::f64());
        self.proceed(ctx);
    }
}

impl Handler<Denied> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: Denied, ctx: &mut Context<Self>) {
        if let Some(reason) = self.deadline.end(LostReason::PermissionDenied) {
            self.lost(reason, ctx);
        }
    }
}

impl Handler<End> for LeaseActor {
    type Result = ();

    fn handle(&mut self, End(reason): End, ctx: &mut Context<Self>) {
        let first = self.deadline.end(reason.unwrap_or(LostReason::Shutdown));
        if let (Some(reason), Some(_)) = (reason, first) {
            self.cell.tell(LeaseEvent::Lost(reason));
        }
        self.cell.close();
        self.leave(ctx);
    }
}
