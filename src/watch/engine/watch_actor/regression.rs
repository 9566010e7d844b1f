//! Finds out why a member is behind a revision that the watch has received.
//!
//! A follower may lag for a moment: then the watch waits until the follower has caught up. Or the cluster was restored
//! from an old backup, or lost its data: then the watch would wait until the new history passes the old revision, and
//! would miss all changes up to there. A linearizable read distinguishes the two: it returns at least every revision that
//! any member has ever sent to a watch, unless the cluster's history was replaced.

use std::time::Duration;

use actix::{AsyncContext, Context, Handler};

use super::{
    WatchActor, actor::retry_delay, messages::CurrentRevisionRead, watch_state::ResyncCause,
};
use crate::{
    error::{Error, ErrorKind},
    proto::{RangeRequest, RangeResponse, rpc},
    transport::grpc,
    watch::WatchEnd,
};

/// Time limit for one read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

impl WatchActor {
    /// Starts to read the current revision from a majority of the cluster. Meanwhile the watch stays on its stream.
    pub(super) fn check_regression(&mut self, failures: u32, ctx: &mut Context<Self>) {
        let Some(caller) = self.caller.upgrade() else {
            return self.end(WatchEnd::Shutdown, ctx);
        };
        // A range that the user of the watch may read; the keys are not of interest.
        let request = RangeRequest {
            key: self.spec.key.clone(),
            range_end: self.spec.range_end.clone(),
            count_only: true,
            ..RangeRequest::default()
        };
        let delay = failures.checked_sub(1).map_or(Duration::ZERO, retry_delay);
        let (attempt, watch) = (self.attempt, ctx.address().downgrade());
        // Events that arrive during the read may be newer than its result.
        let seen = self.cursor.highest_seen();
        actix_rt::spawn(async move {
            tokio::time::sleep(delay).await;
            let read = async {
                let body = grpc::encode(&request)?;
                let response: RangeResponse = caller.unary(rpc::RANGE, body, READ_TIMEOUT).await?;
                Ok::<_, Error>(response.header.map_or(0, |header| header.revision))
            };
            let result = read.await;
            if let Some(watch) = watch.upgrade() {
                watch.do_send(CurrentRevisionRead {
                    attempt,
                    seen,
                    failures,
                    result,
                });
            }
        });
    }

    fn cluster_restored(&mut self, seen: i64, current: i64, ctx: &mut Context<Self>) {
        tracing::warn!(
            watch = self.id,
            seen,
            current,
            "cluster is behind the revision seen by the watch"
        );
        if !self.spec.options.resync {
            self.end(WatchEnd::RevisionRegressed { seen, current }, ctx);
        } else if self.buffer.is_full() {
            // The consumer reads first. Then the watch is created on a member that is behind, again.
            self.pause(ctx);
        } else {
            self.start_resync(ResyncCause::Restore, ctx);
        }
    }
}

impl Handler<CurrentRevisionRead> for WatchActor {
    type Result = ();

    fn handle(&mut self, read: CurrentRevisionRead, ctx: &mut Context<Self>) {
        // On another stream, the response to the create shows whether that member is behind as well.
        if read.attempt != self.attempt || !self.is_served() {
            return;
        }
        match read.result {
            Ok(current) if current < read.seen => {
                self.cluster_restored(read.seen, current, ctx);
            }
            Ok(current) => {
                tracing::debug!(watch = self.id, current, "member of the watch lags");
            }
            Err(error) => match error.kind() {
                ErrorKind::PermissionDenied => self.end(WatchEnd::PermissionDenied(error), ctx),
                ErrorKind::Shutdown => self.end(WatchEnd::Shutdown, ctx),
                // No majority was reachable.
                _ => self.check_regression(read.failures.saturating_add(1), ctx),
            },
        }
    }
}
