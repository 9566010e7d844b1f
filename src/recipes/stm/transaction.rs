//! The handle of an attempt, which the closure of a transaction gets.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Isolation,
    read_set::{Known, ReadSet},
    write_set::{KeyWrite, WriteSet},
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Get, GetResponse, KeyValue},
    request::IntoBytes,
};

/// The reads and writes of one attempt, given to the closure of [`Stm::run`](super::Stm::run).
///
/// A read after a write of the same key returns what was written. Nothing is written before the closure has returned
/// `Ok`. After that, reads fail and writes have no effect. After a read that failed, nothing is written either, also if
/// the closure returns `Ok`.
pub struct Transaction {
    attempt: Arc<Attempted>,
}

/// One attempt, shared by the closure and the loop over attempts.
pub(super) struct Attempted {
    pub(super) client: Client,
    pub(super) isolation: Isolation,
    pub(super) deadline: Instant,
    pub(super) number: u32,
    /// Locked during a request: the first read determines the revision of all others.
    reading: tokio::sync::Mutex<()>,
    /// `None` once the closure has ended.
    sets: Mutex<Option<AttemptSets>>,
}

/// What an attempt has read and writes.
#[derive(Debug, Default)]
pub(super) struct AttemptSets {
    /// The revision of the first read; 0 before it.
    pub(super) first_revision: i64,
    pub(super) reads: ReadSet,
    pub(super) writes: WriteSet,
    /// The first error of a read, without which the attempt cannot be committed, also if the closure ignores it.
    pub(super) failed_read: Option<Error>,
    /// Whether a read failed because the snapshot was compacted: a new attempt reads a newer one.
    pub(super) outdated: bool,
}

impl AttemptSets {
    /// Returns the value that a read finds without a request.
    fn known(&self, key: &[u8]) -> Known<Bytes> {
        if let Some(write) = self.writes.get(key) {
            return Known::Read(write.value().cloned());
        }
        match self.reads.get(key) {
            Known::Read(found) => Known::Read(found.map(|kv| kv.value.clone())),
            Known::Unread => Known::Unread,
        }
    }

    fn set_first_revision(&mut self, revision: i64) {
        if self.first_revision == 0 {
            self.first_revision = revision;
        }
    }
}

impl Attempted {
    pub(super) fn new(
        client: Client,
        isolation: Isolation,
        deadline: Instant,
        number: u32,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            isolation,
            deadline,
            number,
            reading: tokio::sync::Mutex::default(),
            sets: Mutex::new(Some(AttemptSets::default())),
        })
    }

    /// Ends the attempt and returns what it has read and writes.
    pub(super) fn end(&self) -> AttemptSets {
        self.lock().take().unwrap_or_default()
    }

    /// Returns the time until the deadline of the transaction. Fails once it has passed.
    pub(super) fn remaining(&self) -> Result<Duration> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(deadline_passed());
        }
        Ok(remaining)
    }

    fn lock(&self) -> MutexGuard<'_, Option<AttemptSets>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with the sets. Fails if the attempt has ended.
    fn with_sets<T>(&self, call: impl FnOnce(&mut AttemptSets) -> T) -> Result<T> {
        self.lock().as_mut().map(call).ok_or_else(|| {
            Error::invalid("the transaction was used after its closure had returned")
        })
    }

    fn records_reads(&self) -> bool {
        self.isolation != Isolation::ReadCommitted
    }

    /// Returns the revision to read at; 0 is the newest.
    fn snapshot(&self) -> Result<i64> {
        let has_snapshot = self.isolation.has_snapshot();
        self.with_sets(|sets| if has_snapshot { sets.first_revision } else { 0 })
    }

    /// Reads at the snapshot. That state is the same on every member that has it, so a quorum is asked only if the member
    /// lags behind.
    async fn read(&self, get: impl Fn(&Client) -> Get<Client>) -> Result<GetResponse> {
        let read = || Ok::<_, Error>(get(&self.client).timeout(self.remaining()?));
        let found = match self.snapshot()? {
            0 => read()?.await,
            snapshot => match read()?.revision(snapshot).serializable().await {
                Err(error) if error.kind() == ErrorKind::FutureRevision => {
                    read()?.revision(snapshot).await
                }
                found => found,
            },
        };
        self.note_failure(found)
    }

    /// Notes the failure of a read, and whether its snapshot is too old.
    fn note_failure<T>(&self, found: Result<T>) -> Result<T> {
        if let Err(error) = &found {
            self.with_sets(|sets| {
                sets.outdated |= error.kind() == ErrorKind::Compacted;
                sets.failed_read.get_or_insert_with(|| error.clone());
            })?;
        }
        found
    }
}

impl Transaction {
    pub(super) fn new(attempt: Arc<Attempted>) -> Self {
        Self { attempt }
    }

    /// Returns the value of a key, or `None` if it does not exist.
    pub async fn get(&self, key: impl IntoBytes) -> Result<Option<Bytes>> {
        let key = key.into_bytes();
        let _reading = self.attempt.reading.lock().await;
        if let Known::Read(known) = self.attempt.with_sets(|sets| sets.known(&key))? {
            return Ok(known);
        }
        let found = self.attempt.read(|etcd| etcd.get(key.clone())).await?;
        let (revision, found) = (found.header.revision, found.kvs.into_iter().next());
        let value = found.as_ref().map(|kv| kv.value.clone());
        self.record(revision, [(key, found)])?;
        Ok(value)
    }

    /// Returns the values of several keys, in their order, with `None` for keys that do not exist. Reads up to 128 keys
    /// per request, all at one revision.
    pub async fn get_many<K: IntoBytes>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Bytes>>> {
        let keys: Vec<Bytes> = keys.into_iter().map(IntoBytes::into_bytes).collect();
        let _reading = self.attempt.reading.lock().await;
        let unknown: Vec<Bytes> = self.attempt.with_sets(|sets| {
            let is_unknown = |key: &&Bytes| sets.known(key) == Known::Unread;
            keys.iter().filter(is_unknown).cloned().collect()
        })?;
        let mut newest = HashMap::new();
        if !unknown.is_empty() {
            let read = self.attempt.client.get_many(&unknown);
            let read = read.revision(self.attempt.snapshot()?);
            let found = read.timeout(self.attempt.remaining()?).await;
            let found = self.attempt.note_failure(found)?;
            newest = unknown.into_iter().zip(found.kvs).collect();
            self.record(found.revision, newest.clone())?;
        }
        self.attempt.with_sets(|sets| {
            let read = |key: &Bytes| Some(newest.get(key)?.as_ref()?.value.clone());
            let value = |key: &Bytes| match sets.known(key) {
                Known::Read(value) => value,
                Known::Unread => read(key),
            };
            keys.iter().map(value).collect()
        })
    }

    /// Returns all keys with a prefix and their values, in the order of the keys. The commit conflicts if a key with
    /// the prefix was added, changed or removed, also one of the [markers](crate::layers::exactly_once). Each key counts as one of the
    /// [operations](super::Stm::max_ops) of the commit, so this is for small directories.
    pub async fn get_prefix(&self, prefix: impl IntoBytes) -> Result<Vec<(Bytes, Bytes)>> {
        let prefix = prefix.into_bytes();
        let _reading = self.attempt.reading.lock().await;
        let attempt = &self.attempt;
        let mut found = None;
        if !attempt.with_sets(|sets| sets.reads.has_prefix(&prefix))? {
            let read = |etcd: &Client| etcd.get(prefix.clone()).prefix();
            found = Some(attempt.read(read).await?);
        }
        attempt.with_sets(|sets| {
            let mut listed = match found {
                Some(found) if !attempt.records_reads() => {
                    let found = found.kvs.into_iter();
                    found.map(|kv| (kv.key, kv.value)).collect()
                }
                found => {
                    if let Some(found) = found {
                        let revision = found.header.revision;
                        sets.set_first_revision(revision);
                        sets.reads
                            .insert_prefix(prefix.clone(), revision, found.kvs);
                    }
                    sets.reads.with_prefix(&prefix)
                }
            };
            sets.writes.apply_to(&prefix, &mut listed);
            listed.into_iter().collect()
        })
    }

    /// Puts a key when the transaction commits. The key is bound to no lease.
    pub fn put(&self, key: impl IntoBytes, value: impl IntoBytes) {
        self.put_with_lease(key, value, 0);
    }

    /// Puts a key that is bound to a lease when the transaction commits.
    pub fn put_with_lease(
        &self,
        key: impl IntoBytes,
        value: impl IntoBytes,
        lease: impl Into<i64>,
    ) {
        let (value, lease) = (value.into_bytes(), lease.into());
        self.write(key.into_bytes(), KeyWrite::Put { value, lease });
    }

    /// Deletes a key when the transaction commits.
    pub fn delete(&self, key: impl IntoBytes) {
        self.write(key.into_bytes(), KeyWrite::Delete);
    }

    fn write(&self, key: Bytes, write: KeyWrite) {
        // Fails after the end of the closure, when nothing is written any more.
        let _ = self
            .attempt
            .with_sets(|sets| sets.writes.insert(key, write));
    }

    fn record(
        &self,
        revision: i64,
        found: impl IntoIterator<Item = (Bytes, Option<KeyValue>)>,
    ) -> Result<()> {
        if !self.attempt.records_reads() {
            return Ok(());
        }
        self.attempt.with_sets(|sets| {
            sets.set_first_revision(revision);
            for (key, found) in found {
                sets.reads.insert(key, found);
            }
        })
    }

    /// Returns the number of this attempt: 1 for the first.
    pub fn attempt(&self) -> u32 {
        self.attempt.number
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("isolation", &self.attempt.isolation)
            .field("attempt", &self.attempt.number)
            .field("sets", &*self.attempt.lock())
            .finish_non_exhaustive()
    }
}

pub(super) fn deadline_passed() -> Error {
    let reason = "the deadline passed before the transaction was committed";
    Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, reason)
}
