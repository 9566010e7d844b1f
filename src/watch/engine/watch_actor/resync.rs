//! Continues a watch whose history was compacted or replaced: reads the range again and delivers the difference.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context, Handler};
use tokio::time::Instant;

use super::{
    WatchActor,
    messages::RangeReadEnded,
    watch_state::{ResyncCause, WatchState},
};
use crate::{
    error::{ErrorKind, Outcome},
    runtime::backoff::Backoff,
    watch::{
        Resynced, WatchEnd,
        engine::{
            freshness_record::Detachment,
            range_reader::{RangeToRead, read_range},
        },
    },
};

/// Time limit for one page of the read.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Delays between reads that fail in a row, shortened by a random amount.
const READ_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(3)).jitter(1.0);

impl WatchActor {
    /// Starts to read the whole range at one revision and to compare it with the keys that the consumer has.
    pub(super) fn start_resync(&mut self, cause: ResyncCause, ctx: &mut Context<Self>) {
        self.detach(Detachment::Resyncing);
        self.leg_detached();
        self.interrupt(ctx, |gap| WatchState::Resyncing { gap, cause });
        let (Some(caller), Some(known_keys)) = (self.caller.upgrade(), &self.known_keys) else {
            return self.end(WatchEnd::Shutdown, ctx);
        };
        let next_revision = self.cursor.next_revision();
        let mut comparison = match cause {
            ResyncCause::Compaction => known_keys.compare(next_revision),
            ResyncCause::Restore => known_keys.compare_restored(),
        };
        let known_keys = known_keys.clone();
        let range = RangeToRead {
            key: self.spec.key.clone(),
            end: self.spec.range_end.clone(),
            revision: 0,
            keys_only: false,
        };
        let (attempt, watch) = (self.attempt, ctx.address().downgrade());
        let delay = match self.failures {
            0 => Duration::ZERO,
            // Half of the random number selects from the lower half of the jitter.
            failures => READ_BACKOFF.delay(failures, fastrand::f64() / 2.0),
        };
        self.failures += 1;
        actix_rt::spawn(async move {
            tokio::time::sleep(delay).await;
            let began = Instant::now();
            let read = read_range(&caller, range, PAGE_TIMEOUT, |page| {
                comparison.add_page(&known_keys, page);
            });
            let result = read.await.map(|revision| {
                let (difference, known_keys) = comparison.finish(&known_keys);
                (Resynced::new(revision, difference), known_keys)
            });
            if let Some(watch) = watch.upgrade() {
                watch.do_send(RangeReadEnded {
                    attempt,
                    began,
                    next_revision,
                    result,
                });
            }
        });
    }
}

impl Handler<RangeReadEnded> for WatchActor {
    type Result = ();

    fn handle(&mut self, read: RangeReadEnded, ctx: &mut Context<Self>) {
        let WatchState::Resyncing { cause, .. } = self.state else {
            return;
        };
        if read.attempt != self.attempt {
            return;
        }
        if read.next_revision != self.cursor.next_revision() {
            // The other leg of the watch has delivered revisions meanwhile, which the difference would repeat.
            return self.attach(None, ctx);
        }
        match read.result {
            // The cluster was restored while its compacted history was replaced by a read.
            Ok((resynced, _))
                if cause == ResyncCause::Compaction
                    && resynced.revision < self.cursor.highest_seen() =>
            {
                self.start_resync(ResyncCause::Restore, ctx);
            }
            Ok((mut resynced, known_keys)) => {
                resynced.restored = cause == ResyncCause::Restore;
                let (revision, freshness) = (resynced.revision, self.freshness.of_watch());
                match cause {
                    ResyncCause::Compaction => {
                        self.cursor.resynced(revision);
                        freshness.resynced(revision, read.began);
                    }
                    ResyncCause::Restore => {
                        self.cursor.restored(revision);
                        freshness.restored(revision, read.began);
                        self.restart_second_leg();
                    }
                }
                self.known_keys = Some(Box::new(known_keys));
                self.buffer.resynced(resynced);
                self.reset_failures();
                self.publish_position();
                self.attach(None, ctx);
            }
            Err(error) => match error.kind() {
                ErrorKind::PermissionDenied => self.end(WatchEnd::PermissionDenied(error), ctx),
                ErrorKind::Shutdown => self.end(WatchEnd::Shutdown, ctx),
                // No member was reachable, or the revision was compacted between two pages: read again.
                _ => {
                    let error = error.with_outcome(Outcome::NotSent);
                    self.state.record_error(Arc::new(error));
                    self.start_resync(cause, ctx);
                }
            },
        }
    }
}
