//! State and handlers of the lease actor.

use std::sync::Arc;

use actix::{Actor, ActorContext, Addr, Context, Handler, Supervised};

use super::{
    ClusterLeft, KeepAliveDenied, KeepAliveDue, KeepAliveFailed, KeepAliveResponded, StopKeeping,
};
use crate::runtime::supervisor::crashes;
use crate::{
    lease::{
        LeaseLost,
        engine::{
            clock::now,
            deadline::{ResponseEffect, Step},
            kept_leases::KeptLeases,
            lease_cell::LeaseCell,
            lease_slab::LeaseSlot,
        },
    },
    runtime::supervisor::supervise,
};

pub(crate) struct LeaseActor {
    cell: Arc<LeaseCell>,
    slot: LeaseSlot,
    leases: KeptLeases,
}

impl LeaseActor {
    pub(crate) fn start(cell: Arc<LeaseCell>, slot: LeaseSlot, leases: KeptLeases) -> Addr<Self> {
        supervise("lease", |_| {}, |_| Self { cell, slot, leases })
    }

    /// Performs every step that is due and schedules the next check.
    fn advance(&mut self, ctx: &mut Context<Self>) {
        let now = now();
        loop {
            let step = self.leases.with(self.slot, |kept| {
                let step = kept.deadline.next_step(now, fastrand::f64());
                let elsewhere = step == Step::Send { elsewhere: true };
                (step, kept.queued_keepalive(self.slot, elsewhere))
            });
            match step {
                Some((Step::Send { .. }, keepalive)) => self.leases.queue(keepalive),
                Some((Step::AtRisk { deadline }, _)) => {
                    self.cell.report_at_risk(deadline);
                }
                Some((Step::Lost(reason), _)) => return self.lose(reason, ctx),
                Some((Step::Wait { until }, _)) => return self.leases.check_at(self.slot, until),
                Some((Step::Ended, _)) | None => return,
            }
        }
    }

    /// Ends the lease for this reason, unless it has ended already.
    fn end(&mut self, reason: LeaseLost, ctx: &mut Context<Self>) {
        let ended = self
            .leases
            .with(self.slot, |kept| kept.deadline.end(reason));
        if let Some(Some(reason)) = ended {
            self.lose(reason, ctx);
        }
    }

    fn lose(&mut self, reason: LeaseLost, ctx: &mut Context<Self>) {
        tracing::info!(lease = self.cell.id(), ?reason, "lease lost");
        self.cell.report_lost(reason);
        self.stop(ctx);
    }

    fn stop(&mut self, ctx: &mut Context<Self>) {
        self.leases.stop(self.slot);
        ctx.stop();
    }
}

impl Actor for LeaseActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let ended = self.leases.with(self.slot, |kept| kept.deadline.is_ended());
        if ended == Some(false) {
            self.advance(ctx);
        } else {
            // A panic interrupted the stop.
            self.stop(ctx);
        }
    }
}

impl Supervised for LeaseActor {}

crashes!(LeaseActor);

impl Handler<KeepAliveDue> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: KeepAliveDue, ctx: &mut Context<Self>) {
        self.advance(ctx);
    }
}

impl Handler<KeepAliveResponded> for LeaseActor {
    type Result = ();

    fn handle(&mut self, response: KeepAliveResponded, ctx: &mut Context<Self>) {
        let handled = self.leases.with(self.slot, |kept| {
            let deadline = &mut kept.deadline;
            let KeepAliveResponded { ttl, sent_at } = response;
            let effect = deadline.handle_response(ttl, sent_at, now(), fastrand::f64());
            (effect, deadline.ttl())
        });
        match handled {
            Some((Some(ResponseEffect::Renewed { deadline }), ttl)) => {
                self.cell.report_renewed(ttl, deadline);
                self.advance(ctx);
            }
            Some((Some(ResponseEffect::Lost(reason)), _)) => self.lose(reason, ctx),
            Some((None, _)) | None => self.advance(ctx),
        }
    }
}

impl Handler<KeepAliveFailed> for LeaseActor {
    type Result = ();

    fn handle(&mut self, failed: KeepAliveFailed, ctx: &mut Context<Self>) {
        self.leases.with(self.slot, |kept| {
            let deadline = &mut kept.deadline;
            deadline.handle_failure(failed.sent_at, now(), fastrand::f64());
        });
        self.advance(ctx);
    }
}

impl Handler<KeepAliveDenied> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: KeepAliveDenied, ctx: &mut Context<Self>) {
        self.end(LeaseLost::PermissionDenied, ctx);
    }
}

impl Handler<ClusterLeft> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: ClusterLeft, ctx: &mut Context<Self>) {
        self.end(LeaseLost::ClusterChanged, ctx);
    }
}

impl Handler<StopKeeping> for LeaseActor {
    type Result = ();

    fn handle(&mut self, _: StopKeeping, ctx: &mut Context<Self>) {
        self.stop(ctx);
    }
}
