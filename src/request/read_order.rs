//! Reads that never return an older state than earlier responses.
//!
//! A serializable read is answered by one member, which may lag behind. If its response is older than the newest
//! revision seen, it is sent to other members at once, until a quorum of them was behind; the rest could only be newer by
//! chance. Then it is sent as a linearizable read: a quorum has every revision that any member has ever returned.
//!
//! ```text
//! serializable ──older──> another member, up to a quorum ──older──> linearizable ──older──> RevisionRegressed
//!                                                                        │ not possible
//!                                                                        └──> StaleRead
//! ```

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;

use crate::{
    call::{Caller, OldestState, WireResponse},
    error::{Error, ErrorKind, Outcome, Result},
    proto::{RangeRequest, RequestOp, TxnRequest, request_op::Request, rpc::Rpc},
    transport::grpc,
};

/// The newest revision that a client has seen.
#[derive(Debug, Default)]
pub(crate) struct ReadOrder {
    newest: Mutex<SeenRevision>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct SeenRevision {
    /// Revisions of different clusters have nothing in common.
    cluster: u64,
    /// 0 before the first response.
    revision: i64,
}

impl SeenRevision {
    /// Records a response. One of another cluster means that the client follows that cluster now.
    fn responded(&mut self, cluster: u64, revision: i64) {
        if self.cluster == cluster {
            self.revision = self.revision.max(revision);
        } else {
            *self = Self { cluster, revision };
        }
    }

    /// Records an event of a watch. An event of another cluster may be a late one of the cluster that the client left.
    fn watched(&mut self, cluster: u64, revision: i64) {
        if self.revision == 0 || self.cluster == cluster {
            self.responded(cluster, revision);
        }
    }
}

/// A read that one member can answer without the others.
pub(crate) trait SerializableRead: Message + Default {
    /// Returns whether the request is answered by one member, and may be stale.
    fn is_serializable(&self) -> bool;

    /// Makes the read linearizable, if possible.
    fn make_linearizable(&mut self);
}

impl SerializableRead for RangeRequest {
    fn is_serializable(&self) -> bool {
        self.serializable
    }

    fn make_linearizable(&mut self) {
        self.serializable = false;
    }
}

/// etcd consults other members only if the transaction has an operation that is not a serializable read.
impl SerializableRead for TxnRequest {
    fn is_serializable(&self) -> bool {
        let is_serializable = |op: &RequestOp| matches!(&op.request, Some(Request::RequestRange(read)) if read.serializable);
        self.success
            .iter()
            .chain(&self.failure)
            .all(is_serializable)
    }

    fn make_linearizable(&mut self) {
        for op in self.success.iter_mut().chain(&mut self.failure) {
            if let Some(Request::RequestRange(read)) = &mut op.request {
                read.serializable = false;
            }
        }
    }
}

impl ReadOrder {
    /// Records the revision of a response.
    pub(crate) fn responded(&self, cluster: u64, revision: i64) {
        self.lock().responded(cluster, revision);
    }

    /// Records the revision of an event that the application has received.
    pub(crate) fn watched(&self, cluster: u64, revision: i64) {
        self.lock().watched(cluster, revision);
    }

    /// Sends a read, whose request message is encoded in `body`. Accepts no response that is older than the newest
    /// revision seen when this is called.
    pub(crate) async fn read<Q: SerializableRead, R: WireResponse>(
        &self,
        caller: &Caller,
        rpc: Rpc,
        body: Bytes,
        timeout: Duration,
    ) -> Result<R> {
        let SeenRevision { cluster, revision } = *self.lock();
        let mut request: Q = grpc::decode(grpc::without_prefix(&body))?;
        let serializable = request.is_serializable();
        let mut oldest = OldestState {
            cluster,
            revision,
            confirmed: !serializable,
        };
        let began = Instant::now();
        let read = caller.unary_not_older(rpc, body, timeout, Some(&oldest));
        let stale = match read.await {
            // A member that lags behind does not have the requested revision yet; a quorum may have it.
            Err(error)
                if serializable
                    && matches!(
                        error.kind(),
                        ErrorKind::StaleRead | ErrorKind::FutureRevision
                    ) =>
            {
                error
            }
            result => return result,
        };
        request.make_linearizable();
        let remaining = timeout.saturating_sub(began.elapsed());
        if request.is_serializable() || remaining.is_zero() {
            return Err(stale);
        }
        oldest.confirmed = true;
        let rpc = Rpc {
            leaderless: false,
            ..rpc
        };
        let body = grpc::encode(&request)?;
        let read = caller.unary_not_older(rpc, body, remaining, Some(&oldest));
        read.await.map_err(|error| match stale.kind() {
            ErrorKind::StaleRead if error.kind().is_transient() => no_quorum(revision, rpc, &error),
            _ => error,
        })
    }

    fn lock(&self) -> MutexGuard<'_, SeenRevision> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error of a read that only lagging members have answered.
fn no_quorum(seen: i64, rpc: Rpc, error: &Error) -> Error {
    let reason = format!(
        "the members that responded are behind revision {seen}, which this client has seen, and a quorum did not \
         respond: {}",
        error.brief()
    );
    Error::new(ErrorKind::StaleRead, Outcome::Rejected, reason).with_rpc(rpc)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kv::{Compare, Txn, get, txn};

    fn seen(cluster: u64, revision: i64) -> SeenRevision {
        SeenRevision { cluster, revision }
    }

    #[test]
    fn other_cluster_starts_new_order() {
        let mut newest = SeenRevision::default();
        newest.responded(1, 9);
        newest.responded(2, 4);
        assert_eq!(newest, seen(2, 4));
        newest.watched(1, 10);
        assert_eq!(newest, seen(2, 4), "a late event of the cluster left");
        newest.watched(2, 5);
        assert_eq!(newest, seen(2, 5));
    }

    #[test]
    fn transaction_with_only_serializable_reads_may_be_stale() {
        let serializable = |txn: &Txn| txn.wire().unwrap().is_serializable();
        let read = || get("k").serializable();
        assert!(serializable(&txn().then(read()).otherwise(read())));
        assert!(serializable(&txn().when(Compare::version("k").eq(0))));
        assert!(!serializable(&txn().then((read(), get("k")))));
        assert!(!serializable(&txn().then(txn().then(read()))));
        let mut linearizable = txn().then(read()).otherwise(read()).wire().unwrap();
        linearizable.make_linearizable();
        assert!(!linearizable.is_serializable());
    }

    proptest! {
        #[test]
        fn seen_revision_never_decreases(
            responses in prop::collection::vec((any::<bool>(), 1..100_i64), 1..50),
        ) {
            let mut newest = SeenRevision::default();
            for (watched, revision) in responses {
                let before = newest.revision;
                if watched {
                    newest.watched(7, revision);
                } else {
                    newest.responded(7, revision);
                }
                prop_assert_eq!(newest.revision, before.max(revision));
            }
        }
    }
}
