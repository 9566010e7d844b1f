//! How the legs of a hedged watch work together, and what they report to the consumer.

use std::sync::Arc;

use actix::{Addr, AsyncContext, Context, Handler};

use super::{
    WatchActor,
    hedge_legs::{LegRole, SecondLeg, StartedLeg},
    leg_status::LegCreated,
    messages::{LegReport, RequestProgress, RestartLeg, SecondLegStarted, SecondLegUpdate},
};
use crate::{
    error::Error,
    proto::Event,
    watch::{
        WatchEnd,
        engine::{hub::StartSecondLeg, leg::Leg},
    },
};

impl WatchActor {
    /// Reports that the watch lost its stream, unless the other leg of the watch serves it.
    pub(super) fn report_disconnected(&mut self, error: Arc<Error>) {
        let report = match &mut self.role {
            LegRole::Only => true,
            LegRole::First(first) => first.statuses.lost(Leg::First),
            LegRole::Second(second) => return second.send(LegReport::Lost(error)),
        };
        if report && self.spec.options.status_events {
            self.buffer.disconnected(error);
        }
    }

    pub(super) fn report_paused(&mut self) {
        let report = match &mut self.role {
            LegRole::Only => true,
            LegRole::First(first) => first.statuses.paused(Leg::First),
            LegRole::Second(second) => return second.send(LegReport::Paused),
        };
        if report && self.spec.options.status_events {
            self.buffer.paused();
        }
    }

    /// Reports that a member created the watch. `regressed` carries the revision that the watch has seen and the
    /// member's, if the member is behind; `resumed` whether the watch was interrupted before.
    pub(super) fn report_created(
        &mut self,
        revision: i64,
        regressed: Option<(i64, i64)>,
        resumed: bool,
    ) {
        let created = match &mut self.role {
            LegRole::Only => LegCreated {
                resumed,
                regressed: regressed.is_some(),
            },
            LegRole::First(first) => first.statuses.created(Leg::First, regressed.is_some()),
            LegRole::Second(second) => return second.send(LegReport::Created { revision }),
        };
        self.report_leg_created(&created, regressed);
    }

    fn report_leg_created(&self, created: &LegCreated, regressed: Option<(i64, i64)>) {
        if let Some((seen, current)) = regressed
            && created.regressed
        {
            tracing::warn!(
                watch = self.id,
                seen,
                current,
                "member is behind the revision seen by the watch"
            );
            self.buffer.revision_regressed(seen, current);
        }
        if created.resumed && self.spec.options.status_events {
            self.buffer.resumed();
        }
    }

    /// Moves the cursor to where the leg has to attach, and returns that revision.
    pub(super) fn resume_revision(&mut self) -> i64 {
        if let LegRole::Second(second) = &self.role {
            self.cursor.move_to(second.position.get());
        }
        self.cursor.next_revision()
    }

    /// Returns whether the watch continues without this leg. The second leg leaves that to the first one.
    pub(super) fn other_leg_serves(&self) -> bool {
        match &self.role {
            LegRole::Only => false,
            LegRole::First(first) => first.statuses.other_serves(Leg::First),
            LegRole::Second(_) => true,
        }
    }

    /// Returns whether the revisions that are compacted on this leg's member may still arrive from the other leg. If so,
    /// requests progress of the other leg, which moves the cursor, so that this leg can attach again.
    pub(super) fn other_leg_covers(&self, compact_revision: i64) -> bool {
        match &self.role {
            LegRole::Only => false,
            LegRole::First(first) => {
                let covers = first.statuses.other_serves(Leg::First);
                if covers && let Some(second) = self.second_leg() {
                    second.do_send(RequestProgress { reply: None });
                }
                covers
            }
            LegRole::Second(second) => {
                if second.position.get() < compact_revision {
                    second.send(LegReport::Compacted);
                }
                true
            }
        }
    }

    /// Returns whether an outage of this leg is an outage of the watch.
    pub(super) fn outage_affects_watch(&self) -> bool {
        match &self.role {
            LegRole::Only => true,
            LegRole::First(first) => first.statuses.is_out(Leg::Second),
            LegRole::Second(_) => false,
        }
    }

    /// Returns whether a member serves one of the legs.
    pub(super) fn is_served(&self) -> bool {
        let second_is_served = match &self.role {
            LegRole::First(first) => !first.statuses.is_out(Leg::Second),
            LegRole::Only | LegRole::Second(_) => false,
        };
        self.state.is_attached() || second_is_served
    }

    /// Records that the watch left its stream, or its pause, without a failure.
    pub(super) fn leg_detached(&mut self) {
        match &mut self.role {
            LegRole::Only => {}
            LegRole::First(first) => first.statuses.detached(Leg::First),
            LegRole::Second(second) => second.send(LegReport::Detached),
        }
    }

    /// Records that the leg's member sent events or progress.
    pub(super) fn leg_advanced(&mut self) {
        if let LegRole::First(first) = &mut self.role {
            first.statuses.advanced(Leg::First);
        }
    }

    /// Publishes the position of the watch to the second leg.
    pub(super) fn publish_position(&self) {
        if let LegRole::First(first) = &self.role {
            first.position.set(self.cursor.next_revision());
        }
    }

    /// Sends complete revisions to the first leg. Returns the events if this leg delivers them itself.
    pub(super) fn send_to_first_leg(&self, events: Vec<Event>) -> Option<Vec<Event>> {
        match &self.role {
            LegRole::Only | LegRole::First(_) => Some(events),
            LegRole::Second(second) => {
                second.send(LegReport::Events(events));
                None
            }
        }
    }

    /// Requests the second leg of a hedged watch, once the position of the watch is known.
    pub(super) fn start_second_leg(&self, ctx: &mut Context<Self>) {
        if let LegRole::First(first) = &self.role
            && first.second.is_none()
            && self.cursor.next_revision() > 0
        {
            self.publish_position();
            let leg = SecondLeg {
                first: ctx.address().downgrade(),
                first_watch: self.id,
                position: first.position.clone(),
                epoch: first.epoch,
            };
            self.send_to_hub(StartSecondLeg {
                spec: self.spec.clone(),
                cursor: self.cursor.for_other_stream(),
                buffer: self.buffer.buffer(),
                freshness: self.freshness.of_second_leg(),
                leg,
            });
        }
    }

    /// Makes the second leg attach again at the cursor. Everything that it has sent before is ignored: revisions may be
    /// missing.
    pub(super) fn restart_second_leg(&mut self) {
        if let LegRole::First(first) = &mut self.role {
            first.epoch += 1;
            first.position.set(self.cursor.next_revision());
            first.statuses.detached(Leg::Second);
            if let Some(second) = &first.second {
                let epoch = first.epoch;
                second.address.do_send(RestartLeg { epoch });
            }
        }
    }

    /// Returns the second leg, for messages of the consumer that concern both legs.
    pub(super) fn second_leg(&self) -> Option<&Addr<Self>> {
        match &self.role {
            LegRole::First(first) => first.second.as_ref().map(|second| &second.address),
            LegRole::Only | LegRole::Second(_) => None,
        }
    }

    /// Ends the watch if its second leg ends. If the first leg ends, the hub ends the second one.
    pub(super) fn end_first_leg(&self, end: &WatchEnd) {
        if let LegRole::Second(second) = &self.role {
            second.send(LegReport::Ended(end.clone()));
        }
    }

    fn second_leg_reported(&mut self, report: LegReport, ctx: &mut Context<Self>) {
        let LegRole::First(first) = &mut self.role else {
            return;
        };
        match report {
            LegReport::Created { revision } => {
                let seen = self.cursor.highest_seen();
                let regressed = (revision < seen).then_some((seen, revision));
                let created = first.statuses.created(Leg::Second, regressed.is_some());
                self.report_leg_created(&created, regressed);
                // If the first leg is attached to a member that is behind as well, it has started this check itself.
                if created.regressed && !self.state.is_attached() {
                    self.check_regression(0, ctx);
                }
            }
            LegReport::Events(events) => {
                first.statuses.advanced(Leg::Second);
                if let Some(events) = self.cursor.merge_events(events) {
                    self.deliver(events);
                }
            }
            LegReport::Progress { revision, order } => {
                first.statuses.advanced(Leg::Second);
                if self.cursor.merge_progress(revision, order) {
                    self.deliver_progress(revision, order);
                }
            }
            LegReport::Lost(error) => {
                let report = first.statuses.lost(Leg::Second);
                if report && self.spec.options.status_events {
                    self.buffer.disconnected(error.clone());
                }
                self.restart_outage(ctx);
                self.state.record_error(error);
            }
            LegReport::Paused => {
                if first.statuses.paused(Leg::Second) && self.spec.options.status_events {
                    self.buffer.paused();
                }
            }
            LegReport::Detached => {
                first.statuses.detached(Leg::Second);
                self.restart_outage(ctx);
            }
            LegReport::Compacted => {
                if self.state.is_attached() {
                    self.request_progress(true);
                }
            }
            LegReport::Ended(end) => self.end(end, ctx),
        }
    }
}

impl SecondLeg {
    pub(super) fn send(&self, report: LegReport) {
        if let Some(first) = self.first.upgrade() {
            first.do_send(SecondLegUpdate {
                epoch: self.epoch,
                report,
            });
        }
    }
}

impl Handler<SecondLegUpdate> for WatchActor {
    type Result = ();

    fn handle(&mut self, update: SecondLegUpdate, ctx: &mut Context<Self>) {
        #[cfg(feature = "test-faults")]
        assert!(
            !std::mem::take(&mut self.crash_on_next),
            "crash requested by a test"
        );
        // After a restore, the second leg receives events of the new history, of which the watch lacks everything before
        // the range is read. Then the second leg is restarted.
        let is_ignored =
            self.state.replaces_history() && !matches!(update.report, LegReport::Ended(_));
        if let LegRole::First(first) = &self.role
            && first.epoch == update.epoch
            && !is_ignored
        {
            self.second_leg_reported(update.report, ctx);
        }
    }
}

impl Handler<SecondLegStarted> for WatchActor {
    type Result = ();

    fn handle(&mut self, started: SecondLegStarted, _: &mut Context<Self>) {
        let LegRole::First(first) = &mut self.role else {
            return;
        };
        let second = StartedLeg {
            watch: started.watch,
            address: started.address,
        };
        // The first leg may have restarted while the hub started the second one.
        second.address.do_send(RestartLeg { epoch: first.epoch });
        first.second = Some(second);
    }
}

impl Handler<RestartLeg> for WatchActor {
    type Result = ();

    fn handle(&mut self, restart: RestartLeg, ctx: &mut Context<Self>) {
        if let LegRole::Second(second) = &mut self.role
            && second.epoch != restart.epoch
        {
            second.epoch = restart.epoch;
            self.attach(None, ctx);
        }
    }
}
