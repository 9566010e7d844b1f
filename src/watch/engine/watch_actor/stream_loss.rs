//! Handles the failure of a watch's stream and cancels by the server.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context};

use super::{
    WatchActor,
    cancel_reason::{CancelReason, ServerCancel},
    messages::AttachDue,
    watch_state::{ResyncCause, WatchState},
};
use crate::{
    connection::EndpointId,
    error::{Code, Error, ErrorKind, Outcome},
    watch::{WatchEnd, engine::freshness_record::Detachment},
};

/// A watch that was attached for less than this, and received no event, waits before it is created again.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// Most cancels in a row with an unknown reason before the watch ends.
const MAX_UNKNOWN_CANCELS: u32 = 5;

impl WatchActor {
    pub(super) fn cancelled(
        &mut self,
        endpoint: EndpointId,
        cancel: ServerCancel,
        ctx: &mut Context<Self>,
    ) {
        let reason = CancelReason::classify(self.cursor.next_revision(), &cancel);
        let text = cancel.reason;
        match reason {
            CancelReason::Resumable => {
                let error = cancel_error(&text, Outcome::NotSent);
                self.stream_lost(endpoint, Arc::new(error), ctx);
            }
            CancelReason::Unknown
                if self.unknown_cancels < MAX_UNKNOWN_CANCELS || self.other_leg_serves() =>
            {
                let error = cancel_error(&text, Outcome::NotSent);
                self.stream_lost(endpoint, Arc::new(error), ctx);
                self.unknown_cancels = self.unknown_cancels.saturating_add(1);
            }
            CancelReason::Compacted { revision } if self.other_leg_covers(revision) => {
                let text = "the next revision of this leg of the watch was compacted";
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
                    self.start_resync(ResyncCause::Compaction, ctx);
                }
            }
            CancelReason::PermissionDenied => {
                let error = Error::from_status(Code::PermissionDenied, &text);
                self.end(WatchEnd::PermissionDenied(error), ctx);
            }
            CancelReason::TokenRejected => {
                let error = Error::from_status(Code::Unauthenticated, &text);
                self.token_rejected(endpoint, error, ctx);
            }
            CancelReason::Refused | CancelReason::Unknown => {
                let error = cancel_error(&text, Outcome::Rejected);
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
        if attached_for.is_some() {
            self.report_disconnected(error.clone());
        }
        let delay = match attached_for {
            Some(duration) if duration >= STABLE_AFTER => {
                self.reset_failures();
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
            self.detach(Detachment::Reconnecting);
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

fn cancel_error(reason: &str, outcome: Outcome) -> Error {
    let text = if reason.is_empty() {
        "the server cancelled the watch without a reason".to_owned()
    } else {
        format!("the server cancelled the watch: {reason}")
    };
    Error::new(ErrorKind::WatchCanceled, outcome, text)
}
