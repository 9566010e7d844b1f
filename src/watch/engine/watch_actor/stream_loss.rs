//! Handles the failure of a watch's stream and cancels by the server.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context};

use super::{
    WatchActor, cancel_reason::CancelReason, messages::AttachDue, watch_state::WatchState,
};
use crate::{
    connection::EndpointId,
    error::{Code, Error, ErrorKind, Outcome},
    watch::WatchEnd,
};

/// A watch that was attached for less than this, and received no event, waits before it is created again.
const STABLE_AFTER: Duration = Duration::from_secs(1);

impl WatchActor {
    pub(super) fn cancelled(
        &mut self,
        endpoint: EndpointId,
        compact_revision: i64,
        reason: &str,
        ctx: &mut Context<Self>,
    ) {
        let next_revision = self.cursor.next_revision();
        match CancelReason::classify(next_revision, compact_revision, reason) {
            CancelReason::Resumable => {
                let text = if reason.is_empty() {
                    "the server cancelled the watch without a reason".to_owned()
                } else {
                    format!("the server cancelled the watch: {reason}")
                };
                let error = Error::new(ErrorKind::WatchCanceled, Outcome::NotSent, text);
                self.stream_lost(endpoint, Arc::new(error), ctx);
            }
            CancelReason::Compacted { revision } => {
                if !self.spec.options.resync {
                    self.end(WatchEnd::Compacted { revision }, ctx);
                } else if self.buffer.is_full() {
                    // The consumer reads first. Then the watch is created, and cancelled, again.
                    self.pause(ctx);
                } else {
                    self.start_resync(ctx);
                }
            }
            CancelReason::PermissionDenied => {
                let error = Error::from_status(Code::PermissionDenied, reason);
                self.end(WatchEnd::PermissionDenied(error), ctx);
            }
            CancelReason::TokenRejected => {
                let error = Error::from_status(Code::Unauthenticated, reason);
                self.token_rejected(endpoint, error, ctx);
            }
            CancelReason::Refused(reason) => {
                let error = Error::new(ErrorKind::WatchCanceled, Outcome::Rejected, reason);
                self.end(WatchEnd::Refused(error), ctx);
            }
        }
    }

    /// Requests another stream: at once, or after a delay if the watch fails repeatedly.
    pub(super) fn stream_lost(
        &mut self,
        endpoint: EndpointId,
        error: Arc<Error>,
        ctx: &mut Context<Self>,
    ) {
        let attached_for = match self.state {
            WatchState::Attached { since, .. } => Some(since.elapsed()),
            _ => None,
        };
        if attached_for.is_some() && self.spec.options.status_events {
            self.buffer.disconnected(error.clone());
        }
        let delay = match attached_for {
            Some(duration) if duration >= STABLE_AFTER => {
                self.failures = 0;
                Duration::ZERO
            }
            _ if error.kind() == ErrorKind::WatchCanceled => self.next_delay(0),
            Some(_) => self.next_delay(1),
            // The hub delays new streams on a member that responds to no create.
            None => Duration::ZERO,
        };
        if delay.is_zero() {
            self.attach(Some(endpoint), ctx);
        } else {
            self.detach();
            self.interrupt(ctx, |gap| WatchState::BackingOff { gap });
            let due = AttachDue {
                attempt: self.attempt,
                avoid: Some(endpoint),
            };
            ctx.notify_later(due, delay);
        }
        self.state.record_error(error);
    }
}
