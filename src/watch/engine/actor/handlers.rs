//! What a watch does when it is told something.

use actix::{Context, Handler};

use super::{
    AttachDue, Cancel, Drained, HubRestarted, OutageDue, Phase, RequestProgress, ShutDown,
    WatchActor,
};
use crate::watch::{
    WatchEnd,
    engine::{AskProgress, CrashOnNext, Heard, News, crash_if},
};

impl Handler<Heard> for WatchActor {
    type Result = ();

    fn handle(&mut self, heard: Heard, ctx: &mut Context<Self>) {
        crash_if(std::mem::take(&mut self.doomed));
        if heard.attachment != self.attachment {
            return;
        }
        match heard.news {
            News::Created {
                revision,
                cluster_id,
            } => self.created(revision, cluster_id, ctx),
            News::Events { events, fragment } => self.events(events, fragment, ctx),
            News::Progress(revision) => self.progress(revision),
            News::Cancelled {
                endpoint,
                compact_revision,
                reason,
            } => self.cancelled(endpoint, compact_revision, &reason, ctx),
            News::TooLarge(error) => self.end(WatchEnd::Refused(error), ctx),
            News::Broken { endpoint, error } => self.lost(endpoint, error, ctx),
        }
    }
}

impl Handler<Cancel> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: Cancel, ctx: &mut Context<Self>) {
        self.end(WatchEnd::Cancelled, ctx);
    }
}

impl Handler<ShutDown> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: ShutDown, ctx: &mut Context<Self>) {
        self.end(WatchEnd::Shutdown, ctx);
    }
}

impl Handler<Drained> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: Drained, ctx: &mut Context<Self>) {
        if self.phase == Phase::Paused {
            self.resume(ctx);
        }
    }
}

impl Handler<HubRestarted> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: HubRestarted, ctx: &mut Context<Self>) {
        if self.phase == Phase::Attaching {
            self.attach(None, ctx);
        }
    }
}

impl Handler<RequestProgress> for WatchActor {
    type Result = ();

    fn handle(&mut self, request: RequestProgress, _: &mut Context<Self>) {
        self.asking.retain(|asked| !asked.is_closed());
        self.asking.extend(request.told);
        if self.phase == Phase::Attached && !self.asking.is_empty() {
            self.tell_hub(AskProgress { watch: self.id });
        }
    }
}

impl Handler<AttachDue> for WatchActor {
    type Result = ();

    fn handle(&mut self, due: AttachDue, ctx: &mut Context<Self>) {
        if due.attachment == self.attachment && self.phase == Phase::Attaching {
            self.attach(due.avoid, ctx);
        }
    }
}

impl Handler<OutageDue> for WatchActor {
    type Result = ();

    fn handle(&mut self, due: OutageDue, ctx: &mut Context<Self>) {
        if self.down_since == Some(due.since) {
            let last = self.error.take().map(|error| (*error).clone());
            self.end(WatchEnd::OutageTooLong { last }, ctx);
        }
    }
}

impl Handler<CrashOnNext> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: CrashOnNext, _: &mut Context<Self>) {
        self.doomed = true;
    }
}
