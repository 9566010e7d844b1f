//! Linearizable reads of the current revision, shared by concurrent callers.
//!
//! A read that was sent before a caller asked may return an older revision than that caller has written. So callers
//! that ask during a read share the next one.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::{cache_state::CacheState, cached_range::CachedRange};
use crate::{
    client::Client,
    error::{Error, Result},
};

/// Callers that wait to be added to a read.
const MAX_CALLERS: usize = 1024;

/// Returns the current revision of the cluster.
#[derive(Debug, Clone)]
pub(super) struct RevisionReads(mpsc::Sender<oneshot::Sender<Result<RevisionRead>>>);

/// The result of a read.
#[derive(Debug, Clone, Copy)]
pub(super) struct RevisionRead {
    pub(super) revision: i64,
    /// Number of loads of the cache when the read was sent.
    pub(super) loads_before: u64,
    /// Revision up to which the cache had every change when the read was sent.
    pub(super) cached_before: i64,
}

/// Sends the reads until all callers are gone.
pub(super) struct RevisionReader {
    client: Client,
    range: CachedRange,
    state: Arc<CacheState>,
    callers: mpsc::Receiver<oneshot::Sender<Result<RevisionRead>>>,
}

impl RevisionReads {
    pub(super) fn new(
        client: Client,
        range: CachedRange,
        state: Arc<CacheState>,
    ) -> (Self, RevisionReader) {
        let (sender, callers) = mpsc::channel(MAX_CALLERS);
        let reader = RevisionReader {
            client,
            range,
            state,
            callers,
        };
        (Self(sender), reader)
    }

    /// Returns the current revision of the cluster: at least that of every write that was acknowledged before.
    pub(super) async fn read(&self) -> Result<RevisionRead> {
        let (sender, result) = oneshot::channel();
        let sent = self.0.send(sender).await;
        sent.map_err(|_| Error::shut_down())?;
        result.await.unwrap_or_else(|_| Err(Error::shut_down()))
    }
}

impl RevisionReader {
    pub(super) async fn run(mut self) {
        let mut waiting = Vec::new();
        while self.callers.recv_many(&mut waiting, MAX_CALLERS).await > 0 {
            waiting.retain(|caller| !caller.is_closed());
            if waiting.is_empty() {
                continue;
            }
            let (loads_before, cached_before) = {
                let state = self.state.load();
                (state.loads, state.freshness().revision)
            };
            let response = self.range.read_revision(&self.client).await;
            let result = response.map(|response| RevisionRead {
                revision: response.header.revision,
                loads_before,
                cached_before,
            });
            for caller in waiting.drain(..) {
                // An error means that the caller has stopped waiting.
                let _ = caller.send(result.clone());
            }
        }
    }
}
