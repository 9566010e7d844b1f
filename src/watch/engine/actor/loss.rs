//! A watch that lost its place: to a stream that broke, or to a server that cancelled it.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context};

use super::{AttachDue, Phase, WatchActor};
use crate::{
    connection::EndpointId,
    error::{Code, Error, ErrorKind, Outcome},
    watch::{
        WatchEnd,
        engine::{cancel::Cancelled, pacing},
    },
};

/// A watch that is lost sooner than this after it was created, with nothing delivered, is created again with a pause.
const STEADY: Duration = Duration::from_secs(1);

impl WatchActor {
    pub(super) fn cancelled(
        &mut self,
        endpoint: EndpointId,
        compact_revision: i64,
        reason: &str,
        ctx: &mut Context<Self>,
    ) {
        let next = self.cursor.next_revision();
        match Cancelled::classify(next, compact_revision, reason) {
            Cancelled::Resumable => {
                let why = if reason.is_empty() {
                    "without a reason"
                } else {
                    reason
                };
                let text = format!("the server cancelled the watch {why}");
                let error = Error::new(ErrorKind::WatchCanceled, Outcome::Unknown, text);
                self.lost(endpoint, Arc::new(error), ctx);
            }
            Cancelled::Compacted { revision } => {
                if self.spec.resync && self.feed.is_full() {
                    // What is told is read first: then it is created again, and cancelled again.
                    self.lag(ctx);
                } else if self.spec.resync {
                    self.went_down(ctx);
                    self.reread(ctx);
                } else {
                    self.end(WatchEnd::Compacted { revision }, ctx);
                }
            }
            Cancelled::PermissionDenied => {
                let error = Error::from_status(Code::PermissionDenied, reason);
                self.end(WatchEnd::PermissionDenied(error), ctx);
            }
            Cancelled::TokenRejected => self.token_rejected(reason, ctx),
            Cancelled::Refused(reason) => {
                let error = Error::new(ErrorKind::WatchCanceled, Outcome::Rejected, reason);
                self.end(WatchEnd::Refused(error), ctx);
            }
        }
    }

    /// The place is gone: look for another one, at once unless this happens again and again.
    pub(super) fn lost(
        &mut self,
        endpoint: EndpointId,
        error: Arc<Error>,
        ctx: &mut Context<Self>,
    ) {
        if self.phase == Phase::Attached && self.spec.status_events {
            self.feed.disconnected(error.clone());
        }
        let cancelled = error.kind() == ErrorKind::WatchCanceled;
        self.error = Some(error);
        self.went_down(ctx);
        let attached = self.attached_at.take().map(|since| since.elapsed());
        let pause = match attached {
            Some(lasted) if lasted >= STEADY => {
                self.setbacks = 0;
                Duration::ZERO
            }
            _ if cancelled => self.setback(0),
            Some(_) => self.setback(1),
            // The hub paces streams that end before they are of use.
            None => Duration::ZERO,
        };
        if pause.is_zero() {
            return self.attach(Some(endpoint), ctx);
        }
        self.detach(Phase::Attaching);
        let due = AttachDue {
            attachment: self.attachment,
            avoid: Some(endpoint),
        };
        ctx.notify_later(due, pause);
    }

    /// The pause after one more setback in a row: none after the first `spared`, then growing.
    pub(super) fn setback(&mut self, spared: u32) -> Duration {
        let before = self.setbacks;
        self.setbacks += 1;
        match before.checked_sub(spared) {
            Some(again) => pacing::rest(again).mul_f64(0.5 + 0.5 * fastrand::f64()),
            None => Duration::ZERO,
        }
    }
}
