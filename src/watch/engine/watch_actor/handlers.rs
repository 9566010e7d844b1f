//! Message handlers of a watch's actor.

use actix::{Context, Handler};

#[cfg(feature = "test-faults")]
use super::messages::CrashOnNextUpdate;
use super::{
    WatchActor,
    messages::{
        AttachDue, BufferDrained, CancelWatch, HubRestarted, OutageTimedOut, RequestProgress,
        StreamUpdate, UpdateReceived, WatchShutdown,
    },
    watch_state::WatchState,
};
use crate::{
    error::Error,
    retry::{RetryDecision, decision::remedy},
    watch::{WatchEnd, engine::watch_stream::StreamSharing},
};

impl Handler<UpdateReceived> for WatchActor {
    type Result = ();

    fn handle(&mut self, received: UpdateReceived, ctx: &mut Context<Self>) {
        #[cfg(feature = "test-faults")]
        assert!(
            !std::mem::take(&mut self.crash_on_next),
            "crash requested by a test"
        );
        if received.attempt != self.attempt {
            return;
        }
        match received.update {
            StreamUpdate::Created {
                revision,
                cluster_id,
            } => self.created(revision, cluster_id, ctx),
            StreamUpdate::Events { events, fragment } => self.events(events, fragment, ctx),
            StreamUpdate::Progress { revision, order } => self.progress(revision, order),
            StreamUpdate::Cancelled {
                endpoint,
                cancel,
                bookmark,
            } => {
                self.apply_bookmark(bookmark);
                self.cancelled(endpoint, cancel, ctx);
            }
            StreamUpdate::ResponseTooLarge(error) => self.end(WatchEnd::Refused(error), ctx),
            StreamUpdate::StreamFull => self.attach(None, ctx),
            StreamUpdate::StartsInFuture => self.attach_to(StreamSharing::Alone, None, ctx),
            StreamUpdate::StreamFailed {
                endpoint,
                error,
                bookmark,
            } => {
                self.apply_bookmark(bookmark);
                if remedy(error.kind()) == RetryDecision::RenewToken {
                    self.token_rejected(endpoint, Error::clone(&error), ctx);
                } else {
                    self.stream_lost(endpoint, error, ctx);
                }
            }
        }
    }
}

impl Handler<CancelWatch> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: CancelWatch, ctx: &mut Context<Self>) {
        self.end(WatchEnd::Cancelled, ctx);
    }
}

impl Handler<WatchShutdown> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: WatchShutdown, ctx: &mut Context<Self>) {
        self.end(WatchEnd::Shutdown, ctx);
    }
}

impl Handler<BufferDrained> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: BufferDrained, ctx: &mut Context<Self>) {
        if let Some(second) = self.second_leg() {
            second.do_send(BufferDrained);
        }
        if matches!(self.state, WatchState::Paused { .. }) {
            self.attach(None, ctx);
        }
    }
}

impl Handler<HubRestarted> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: HubRestarted, ctx: &mut Context<Self>) {
        self.start_second_leg(ctx);
        if self.state.is_attaching() {
            self.attach(None, ctx);
        }
    }
}

impl Handler<RequestProgress> for WatchActor {
    type Result = ();

    fn handle(&mut self, request: RequestProgress, _: &mut Context<Self>) {
        self.progress_requests.retain(|reply| !reply.is_closed());
        self.progress_requests.extend(request.reply);
        let is_wanted = !self.progress_requests.is_empty();
        if is_wanted && let Some(second) = self.second_leg() {
            second.do_send(RequestProgress { reply: None });
        }
        // The first leg of a hedged watch sends requests to the second one only if they are wanted.
        if self.state.is_attached() && (is_wanted || self.role.is_second()) {
            self.request_progress(true);
        }
    }
}

impl Handler<AttachDue> for WatchActor {
    type Result = ();

    fn handle(&mut self, due: AttachDue, ctx: &mut Context<Self>) {
        let is_waiting = matches!(self.state, WatchState::BackingOff { .. });
        if due.attempt == self.attempt && is_waiting {
            self.attach(due.avoid, ctx);
        }
    }
}

impl Handler<OutageTimedOut> for WatchActor {
    type Result = ();

    fn handle(&mut self, timed_out: OutageTimedOut, ctx: &mut Context<Self>) {
        if let Some(outage) = self.state.outage()
            && outage.since == timed_out.since
            && self.outage_affects_watch()
        {
            let last = outage.last_error.as_deref().cloned();
            self.end(WatchEnd::OutageTooLong { last }, ctx);
        }
    }
}

#[cfg(feature = "test-faults")]
impl Handler<CrashOnNextUpdate> for WatchActor {
    type Result = ();

    fn handle(&mut self, _: CrashOnNextUpdate, _: &mut Context<Self>) {
        self.crash_on_next = true;
    }
}
