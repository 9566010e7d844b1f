//! Sends a write that depends on the current state of its key.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, KeyValue, Op, OpResponse, TxnResponse, get, txn},
    layers::exactly_once::{Fences, MarkedWrite},
    proto::rpc::Rpc,
};

/// How a conditional write is sent.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteOptions {
    pub(super) fences: Fences,
    pub(super) without_marker: bool,
}

/// The result of a conditional write.
#[derive(Debug, PartialEq)]
pub(super) enum WriteResult {
    /// Applied at this revision.
    Applied(i64),
    /// The condition did not hold. Contains the key as it is.
    ConditionFailed(Option<KeyValue>),
}

/// Applies an operation if a condition on its key holds.
pub(super) async fn write_if(
    client: &Client,
    rpc: Rpc,
    key: &Bytes,
    condition: Compare,
    op: impl Into<Op>,
    options: &WriteOptions,
    timeout: Duration,
) -> Result<WriteResult> {
    let deadline = deadline_in(timeout);
    let write = MarkedWrite {
        rpc,
        txn: txn().when(condition).then(op.into()).otherwise(get(key)),
        fences: options.fences.clone(),
    };
    let mut remaining = timeout;
    loop {
        let applied = if options.without_marker {
            write.send_without_marker(client, remaining).await?
        } else {
            write.send(client, remaining).await?
        };
        match (applied.succeeded, applied.response) {
            (true, _) => return Ok(WriteResult::Applied(applied.revision)),
            (false, Some(response)) => {
                return found_key(response).map(WriteResult::ConditionFailed);
            }
            // The condition did not hold, and the response with the key was lost. Nothing was written: ask again.
            (false, None) => remaining = deadline.saturating_duration_since(Instant::now()),
        }
    }
}

fn found_key(response: TxnResponse) -> Result<Option<KeyValue>> {
    if let Some(OpResponse::Get(found)) = response.responses.into_iter().next() {
        return Ok(found.kvs.into_iter().next());
    }
    let reason = "the response of the transaction does not match its operations";
    Err(Error::new(ErrorKind::Protocol, Outcome::Rejected, reason))
}

/// Implements the options that all conditional writes have.
macro_rules! write_options {
    ($request:ident) => {
        impl<C> $request<C> {
            /// Applies the write only while this lock or leadership is held. Otherwise it fails with
            /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost), and nothing is written. Can be called several times.
            /// Default: no such condition.
            pub fn fenced_by(mut self, fence: &impl $crate::layers::exactly_once::Fence) -> Self {
                self.options.fences.add(fence);
                self
            }

            /// Sends a plain transaction, which costs less. If its response is lost, the error has the outcome
            /// [`Unknown`](crate::Outcome::Unknown). Default: the write is applied
            /// [exactly once](crate::layers::exactly_once), or surely not.
            pub fn without_marker(mut self) -> Self {
                self.options.without_marker = true;
                self
            }
        }
    };
}
pub(super) use write_options;
