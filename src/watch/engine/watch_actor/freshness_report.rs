//! Delivers the freshness of a watch at intervals. The second leg of a hedged watch only requests its progress.

use actix::{AsyncContext, Context, Handler};

use super::{WatchActor, messages::ReportFreshness};

impl WatchActor {
    /// Schedules the next report, if the watch has the option.
    pub(super) fn schedule_freshness_report(&self, ctx: &mut Context<Self>) {
        if let Some(interval) = self.spec.options.freshness_interval {
            ctx.notify_later(ReportFreshness, interval);
        }
    }
}

impl Handler<ReportFreshness> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: ReportFreshness, ctx: &mut Context<Self>) {
        if !self.role.is_second() {
            // The consumer reads all events in the buffer before the report.
            let freshness = self.freshness.of_watch();
            self.buffer
                .freshness(freshness.freshness(self.cursor.delivered()));
        }
        if self.state.is_attached() {
            // For the next report.
            self.request_progress(false);
        }
        self.schedule_freshness_report(ctx);
    }
}
