//! A watch whose history is gone: the range is read anew, and the consumer is told what it came to.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context, Handler, Message};

use super::{Phase, WatchActor};
use crate::{
    error::{Error, ErrorKind},
    proto::KeyValue,
    watch::{
        Resynced, WatchEnd,
        engine::{
            pacing,
            reread::{self, Range},
            resync::{Keyed, Known},
        },
    },
};

/// How long a page of a resync may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The range was read, or could not be.
#[derive(Message)]
#[rtype(result = "()")]
struct Reread {
    attachment: u32,
    result: Result<(Resynced, Known), Error>,
}

impl Keyed for KeyValue {
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn create_revision(&self) -> i64 {
        self.create_revision
    }

    fn mod_revision(&self) -> i64 {
        self.mod_revision
    }
}

impl WatchActor {
    /// Reads the whole range at one revision and compares it with what the consumer knows.
    pub(super) fn reread(&mut self, ctx: &mut Context<Self>) {
        self.detach(Phase::Resyncing);
        let (Some(caller), Some(known)) = (self.caller.upgrade(), &self.known) else {
            return self.end(WatchEnd::Shutdown, ctx);
        };
        let mut comparison = known.resync::<KeyValue>(self.cursor.next_revision());
        let known = known.clone();
        let range = Range {
            key: self.spec.key.clone(),
            end: self.spec.range_end.clone(),
            revision: 0,
            keys_only: false,
        };
        let (attachment, watch) = (self.attachment, ctx.address().downgrade());
        let pause = pacing::rest(self.setbacks).mul_f64(fastrand::f64());
        let pause = if self.setbacks == 0 {
            Duration::ZERO
        } else {
            pause
        };
        self.setbacks += 1;
        actix_rt::spawn(async move {
            tokio::time::sleep(pause).await;
            let read = reread::read(&caller, range, PAGE_TIMEOUT, |page| {
                comparison.page(&known, page);
            });
            let result = read.await.map(|revision| {
                let (difference, known) = comparison.finish(&known);
                (Resynced::new(revision, difference), known)
            });
            if let Some(watch) = watch.upgrade() {
                watch.do_send(Reread { attachment, result });
            }
        });
    }
}

impl Handler<Reread> for WatchActor {
    type Result = ();

    fn handle(&mut self, reread: Reread, ctx: &mut Context<Self>) {
        if reread.attachment != self.attachment || self.phase != Phase::Resyncing {
            return;
        }
        match reread.result {
            Ok((resynced, known)) => {
                self.cursor.resynced(resynced.revision);
                self.known = Some(Box::new(known));
                self.feed.resynced(resynced);
                self.setbacks = 0;
                self.attach(None, ctx);
            }
            Err(error) => match error.kind() {
                ErrorKind::PermissionDenied => self.end(WatchEnd::PermissionDenied(error), ctx),
                ErrorKind::Shutdown => self.end(WatchEnd::Shutdown, ctx),
                // Members may be away, or the range was compacted between two pages: read it again.
                _ => {
                    self.error = Some(Arc::new(error));
                    self.reread(ctx);
                }
            },
        }
    }
}
