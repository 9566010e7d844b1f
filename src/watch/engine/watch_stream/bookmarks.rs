//! Requests the progress of a stream at intervals.
//!
//! The position of a watch without events would stay where it was created, and a compaction of other keys' history would
//! end the watch at its next reconnect. So the stream requests progress at intervals, once for all its watches. The
//! responses are not sent to the watches: they are stored, and a watch receives the *bookmark*, the revision up to which
//! it is complete, together with the reason why it has to leave the stream.
//!
//! etcd's gRPC proxy does not respond to progress requests (some releases even panic), so none are sent to servers that
//! choose the watch ids. There, `progress_notify` moves the positions: every create has that flag, and the server sends
//! progress of each watch at its own interval.

use std::time::Duration;

use actix::{AsyncContext, Context, Handler};
use tokio::time::Instant;

use super::{
    StreamActor,
    actor::StreamWatch,
    create_pairing::IdSource,
    messages::{ProgressRequestDue, SendProgressRequest},
};
use crate::proto::{WatchProgressRequest, watch_request::RequestUnion};

/// Time after which requests without a response are reviewed if the requests at intervals are disabled.
const REVIEW_INTERVAL: Duration = Duration::from_secs(10);
/// Relative deviation of the interval, so that the requests of many streams do not coincide.
const JITTER: f64 = 0.2;

impl StreamActor {
    /// Schedules the next progress request.
    pub(super) fn schedule_progress_request(&self, ctx: &mut Context<Self>) {
        let interval = self.progress_interval.unwrap_or(REVIEW_INTERVAL);
        let jitter = 1.0 + JITTER * (2.0 * fastrand::f64() - 1.0);
        ctx.notify_later(ProgressRequestDue, interval.mul_f64(jitter));
    }

    fn request_progress(&mut self) {
        if self.pairing.awaits_progress() {
            self.return_future_watches();
        }
        if self.pairing.id_source() == IdSource::Client && !self.has_ended() {
            self.pairing.progress_requested();
            self.progress.request_sent(Instant::now());
            self.send(RequestUnion::ProgressRequest(WatchProgressRequest {}));
        }
    }

    /// Returns the revision up to which a watch of this stream is complete, if that is known.
    pub(super) fn bookmark(&self, watch: &StreamWatch) -> Option<i64> {
        let created_after = watch.created_after?;
        self.progress.bookmark(created_after, Instant::now())
    }
}

impl Handler<ProgressRequestDue> for StreamActor {
    type Result = ();

    fn handle(&mut self, _: ProgressRequestDue, ctx: &mut Context<Self>) {
        if self.has_ended() {
            return;
        }
        for _ in 0..self.progress.interval_passed() {
            self.pairing.progress_request_ignored();
        }
        if self.progress_interval.is_some() {
            self.request_progress();
        }
        self.schedule_progress_request(ctx);
    }
}

impl Handler<SendProgressRequest> for StreamActor {
    type Result = ();

    fn handle(&mut self, request: SendProgressRequest, _: &mut Context<Self>) {
        if let Some(id) = request.notify.and_then(|watch| self.ids.get(&watch))
            && let Some(watch) = self.pairing.live_watch(*id)
        {
            watch.awaits_progress = true;
        }
        self.request_progress();
    }
}
