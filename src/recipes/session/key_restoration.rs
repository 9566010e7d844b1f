//! Puts the keys of a session again with a new lease.
//!
//! Keys are put in batches, one transaction each. A batch that etcd rejects because of one of its keys is split until
//! that key is alone, so that the other keys are put. A key that another client has put meanwhile is left alone.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::time::Instant;

use super::{own_leases::OwnLeases, session_state::BoundKey};
use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, KeyValue, OpResponse, TxnResponse, get, put},
};

/// Maximum number of keys per transaction. etcd's default limit is 128 operations.
const MAX_BATCH_KEYS: usize = 100;
/// Maximum size of the keys and values of a transaction, unless a single key is larger. etcd's default limit is 1.5 MiB
/// per request. A key is part of a condition, a put and a get.
const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// A key and its last put by the session.
pub(super) type KeyToRestore = (Bytes, BoundKey);

/// Result of the attempt to put one key again.
#[derive(Debug, Clone)]
pub(super) enum KeyOutcome {
    /// The key was put at this revision.
    Restored {
        revision: i64,
    },
    /// Another client has put the key.
    Taken,
    Failed(Error),
}

pub(super) struct KeyRestoration<'a> {
    pub(super) client: &'a Client,
    /// The leases of the session. The keys are bound to the current one.
    pub(super) leases: OwnLeases,
}

impl KeyRestoration<'_> {
    /// Tries to put all keys. Returns the outcome for each. Fails only if no key can be put: the lease is lost again, or
    /// the client was shut down.
    pub(super) async fn run(&self, keys: Vec<KeyToRestore>) -> Result<Vec<(Bytes, KeyOutcome)>> {
        let mut outcomes = Vec::with_capacity(keys.len());
        let mut queue = VecDeque::from(batches(keys));
        while let Some(mut batch) = queue.pop_front() {
            match self.put_batch(&batch).await {
                Ok(done) => {
                    let keys = batch.into_iter().map(|(key, _)| key);
                    outcomes.extend(keys.zip(done));
                }
                Err(error) => match batch_failure(error.kind(), batch.len()) {
                    BatchFailure::GiveUp => return Err(error),
                    BatchFailure::Split => {
                        let second = batch.split_off(batch.len() / 2);
                        queue.push_front(second);
                        queue.push_front(batch);
                    }
                    BatchFailure::Report => {
                        let failed = KeyOutcome::Failed(error);
                        let keys = batch.into_iter().map(|(key, _)| (key, failed.clone()));
                        outcomes.extend(keys);
                    }
                },
            }
        }
        Ok(outcomes)
    }

    /// Puts the keys of one batch in one transaction. Returns one outcome per key.
    async fn put_batch(&self, batch: &[KeyToRestore]) -> Result<Vec<KeyOutcome>> {
        let deadline = deadline_in(self.client.request_timeout());
        // The keys are absent as a rule: etcd has deleted them with their lease.
        let mut found = vec![FoundKey::Unchanged { mod_revision: 0 }; batch.len()];
        loop {
            let mut txn = self.client.txn();
            let mut is_empty = true;
            for ((key, bound), found) in batch.iter().zip(&found) {
                if let FoundKey::Unchanged { mod_revision } = *found {
                    is_empty = false;
                    txn = txn
                        .when([Compare::mod_revision(key.clone()).eq(mod_revision)])
                        .then(put(key.clone(), bound.value.clone()).lease(self.leases.current()))
                        // With its value, because etcd 3.7 omits the lease of a key that is read without it.
                        .otherwise(get(key.clone()));
                }
            }
            if is_empty {
                return Ok(vec![KeyOutcome::Taken; batch.len()]);
            }
            let response = txn.await?;
            if response.succeeded {
                let revision = response.header.revision;
                let outcome = |found: &FoundKey| match found {
                    FoundKey::Unchanged { .. } => KeyOutcome::Restored { revision },
                    FoundKey::Taken => KeyOutcome::Taken,
                };
                return Ok(found.iter().map(outcome).collect());
            }
            self.update_found(batch, &mut found, &response)?;
            // Keys may be deleted with their lease between two transactions.
            if Instant::now() >= deadline {
                let reason = "the keys change each time the session puts them again";
                return Err(Error::new(ErrorKind::Other, Outcome::Rejected, reason));
            }
        }
    }

    /// Reads from the response to a rejected transaction which of its keys exist.
    fn update_found(
        &self,
        batch: &[KeyToRestore],
        found: &mut [FoundKey],
        response: &TxnResponse,
    ) -> Result<()> {
        let mut reads = response.responses.iter();
        for ((_, bound), found) in batch.iter().zip(found) {
            if *found == FoundKey::Taken {
                continue;
            }
            let Some(OpResponse::Get(read)) = reads.next() else {
                let reason = "the response lacks a key that the transaction reads";
                return Err(Error::new(ErrorKind::Protocol, Outcome::Rejected, reason));
            };
            *found = found_key(read.first(), bound.revision, &self.leases);
        }
        Ok(())
    }
}

/// State of a key, as far as the session knows it before the put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoundKey {
    /// The key may be put if it still has this revision. Zero: if it is absent.
    Unchanged { mod_revision: i64 },
    /// Another client has put the key.
    Taken,
}

/// Also recognizes keys of this session: a put whose response was lost, and a key of a lease whose end was never
/// confirmed.
fn found_key(found: Option<&KeyValue>, put_at: i64, leases: &OwnLeases) -> FoundKey {
    let Some(found) = found else {
        return FoundKey::Unchanged { mod_revision: 0 };
    };
    let mod_revision = found.mod_revision;
    if mod_revision == put_at || leases.contains(found.lease) {
        FoundKey::Unchanged { mod_revision }
    } else {
        FoundKey::Taken
    }
}

/// Divides keys into batches that etcd accepts by default.
fn batches(keys: Vec<KeyToRestore>) -> Vec<Vec<KeyToRestore>> {
    let mut batches: Vec<Vec<KeyToRestore>> = Vec::new();
    let mut size = 0;
    for (key, bound) in keys {
        let key_size = 3 * key.len() + bound.value.len();
        size += key_size;
        match batches.last_mut() {
            Some(batch) if batch.len() < MAX_BATCH_KEYS && size <= MAX_BATCH_BYTES => {
                batch.push((key, bound));
            }
            _ => {
                size = key_size;
                batches.push(vec![(key, bound)]);
            }
        }
    }
    batches
}

/// Reaction to the failure of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchFailure {
    /// No key can be put.
    GiveUp,
    /// One of the keys may be the reason.
    Split,
    /// All keys have failed.
    Report,
}

fn batch_failure(kind: ErrorKind, keys: usize) -> BatchFailure {
    match kind {
        ErrorKind::LeaseNotFound | ErrorKind::Shutdown => BatchFailure::GiveUp,
        _ if keys <= 1 => BatchFailure::Report,
        ErrorKind::PermissionDenied => BatchFailure::Split,
        // Each smaller batch would fail as well.
        ErrorKind::NoSpace => BatchFailure::Report,
        kind if kind.is_auth() || kind.is_transient() => BatchFailure::Report,
        _ => BatchFailure::Split,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize, value_size: usize) -> KeyToRestore {
        let bound = BoundKey {
            value: vec![0; value_size].into(),
            revision: 9,
        };
        (number.to_string().into(), bound)
    }

    #[test]
    fn batches_are_bounded_in_keys_and_bytes() {
        let sizes = |keys: Vec<KeyToRestore>| -> Vec<usize> {
            batches(keys).iter().map(Vec::len).collect()
        };
        assert!(sizes(Vec::new()).is_empty());
        let small = (0..250).map(|number| key(number, 10)).collect();
        assert_eq!(sizes(small), [100, 100, 50]);
        let large = (0..5).map(|number| key(number, 400 * 1024)).collect();
        assert_eq!(sizes(large), [2, 2, 1]);
        let too_large = (0..3).map(|number| key(number, 2 * MAX_BATCH_BYTES));
        assert_eq!(sizes(too_large.collect()), [1, 1, 1]);
    }

    #[test]
    fn keys_of_other_clients_are_left_alone() {
        let leases = OwnLeases::new(1);
        let found = |lease, mod_revision| {
            let found = KeyValue {
                lease,
                mod_revision,
                ..KeyValue::default()
            };
            found_key(Some(&found), 9, &leases)
        };
        let unchanged = |mod_revision| FoundKey::Unchanged { mod_revision };
        assert_eq!(found_key(None, 9, &leases), unchanged(0));
        assert_eq!(found(1, 12), unchanged(12), "bound to the own lease");
        assert_eq!(found(2, 9), unchanged(9), "the own put");
        assert_eq!(found(2, 12), FoundKey::Taken);
        assert_eq!(found(0, 12), FoundKey::Taken);
    }

    #[test]
    fn batch_splits_only_for_failures_of_single_keys() {
        for kind in [
            ErrorKind::PermissionDenied,
            ErrorKind::RequestTooLarge,
            ErrorKind::TooManyOps,
        ] {
            assert_eq!(batch_failure(kind, 2), BatchFailure::Split, "{kind:?}");
            assert_eq!(batch_failure(kind, 1), BatchFailure::Report, "{kind:?}");
        }
        for kind in [
            ErrorKind::NoSpace,
            ErrorKind::AuthFailed,
            ErrorKind::DeadlineExceeded,
        ] {
            assert_eq!(batch_failure(kind, 2), BatchFailure::Report, "{kind:?}");
        }
        for kind in [ErrorKind::LeaseNotFound, ErrorKind::Shutdown] {
            assert_eq!(batch_failure(kind, 1), BatchFailure::GiveUp, "{kind:?}");
        }
    }
}
