//! Reading a key, changing it by a function, and writing it back.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Change, IntoChange, ModifyOutcome,
    write_if::{WriteOptions, WriteResult, write_if, write_options},
};
use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, KeyValue, Op, delete, put},
    layers::exactly_once::MarkingClient,
    proto::rpc,
    request::{IntoBytes, macros::request},
    runtime::backoff::Backoff,
};

/// Delays after conflicts. With much jitter, so that writers do not meet again.
const CONFLICT_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(5), Duration::from_millis(500)).jitter(0.9);
const DEFAULT_MAX_ATTEMPTS: u32 = 100;

/// Changes a key by a function. See [`Client::modify`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Modify<C = ()> {
    key: Bytes,
    function: ChangeFunction,
    lease: Option<i64>,
    max_attempts: u32,
    options: WriteOptions,
    timeout: Option<Duration>,
    client: C,
}

#[derive(Clone)]
struct ChangeFunction(Arc<ChangeFn>);

type ChangeFn = dyn Fn(Option<&KeyValue>) -> Result<Change> + Send + Sync;

impl fmt::Debug for ChangeFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChangeFunction")
    }
}

request!(
    Modify { key, function, lease, max_attempts, options } -> ModifyOutcome,
    MarkingClient
);
write_options!(Modify);

/// Creates a request that changes a key by a function. See [`Client::modify`].
pub fn modify<F, R>(key: impl IntoBytes, function: F) -> Modify
where
    F: Fn(Option<&KeyValue>) -> R + Send + Sync + 'static,
    R: IntoChange,
{
    Modify {
        key: key.into_bytes(),
        function: ChangeFunction(Arc::new(move |current| function(current).into_change())),
        lease: None,
        max_attempts: DEFAULT_MAX_ATTEMPTS,
        options: WriteOptions::default(),
        timeout: None,
        client: (),
    }
}

impl Client {
    /// Reads a key, passes it to a function, and writes the result back if the key has not changed meanwhile. Otherwise
    /// starts again after a delay that grows with each conflict. The change is applied exactly once.
    ///
    /// The function gets `None` if the key does not exist. It returns the new value as text or bytes, a [`Change`], or a
    /// `Result` whose error ends the request. It may be called several times, and only the result of the last call is
    /// written.
    ///
    /// Fails with [`ErrorKind::Conflict`] if the key changed in every attempt, and with
    /// [`ErrorKind::DeadlineExceeded`] if it did until the deadline. Then nothing was written.
    pub fn modify<F, R>(&self, key: impl IntoBytes, function: F) -> Modify<Self>
    where
        F: Fn(Option<&KeyValue>) -> R + Send + Sync + 'static,
        R: IntoChange,
    {
        modify(key, function).on(self)
    }
}

impl<C> Modify<C> {
    /// Attaches the key to this lease, or with 0 to none. Default: a key that exists keeps its lease, and one that is
    /// created has none.
    pub fn lease(mut self, lease: impl Into<i64>) -> Self {
        self.lease = Some(lease.into());
        self
    }

    /// Largest number of attempts, at least 1. The timeout limits them as well. Default: 100.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }
}

impl Modify {
    async fn perform(
        self,
        client: &impl MarkingClient,
        timeout: Duration,
    ) -> Result<ModifyOutcome> {
        let client = client.marking_client();
        let deadline = deadline_in(timeout);
        let remaining = || deadline.saturating_duration_since(Instant::now());
        let mut backoff = CONFLICT_BACKOFF.start();
        loop {
            let read = client.get(&self.key).timeout(remaining()).await;
            // Nothing was written so far.
            let read = read.map_err(|error| error.with_outcome(Outcome::NotSent))?;
            let current = read.kvs.into_iter().next();
            let change = (self.function.0)(current.as_ref())?;
            if let Some(outcome) = self.apply(client, current, change, remaining()).await? {
                return Ok(outcome);
            }
            let delay = backoff.next_delay(fastrand::f64());
            let attempts = backoff.failures();
            if attempts >= self.max_attempts {
                return Err(self.conflict(ErrorKind::Conflict, attempts));
            }
            if remaining() <= delay {
                return Err(self.conflict(ErrorKind::DeadlineExceeded, attempts));
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Returns `None` after a conflict.
    async fn apply(
        &self,
        client: &Client,
        current: Option<KeyValue>,
        change: Change,
        timeout: Duration,
    ) -> Result<Option<ModifyOutcome>> {
        let key = &self.key;
        let removes = change == Change::Remove;
        let rpc = if removes { rpc::DELETE_RANGE } else { rpc::PUT };
        let op = match (change, self.lease) {
            (Change::Keep, _) => return Ok(Some(ModifyOutcome::Kept(current))),
            (Change::Remove, _) if current.is_none() => return Ok(Some(ModifyOutcome::Kept(None))),
            (Change::Remove, _) => Op::from(delete(key)),
            (Change::Put(value), Some(lease)) => put(key, value).lease(lease).into(),
            (Change::Put(value), None) if current.is_some() => {
                put(key, value).ignore_lease().into()
            }
            (Change::Put(value), None) => put(key, value).into(),
        };
        let mod_revision = current.map_or(0, |kv| kv.mod_revision);
        let unchanged = Compare::mod_revision(key).eq(mod_revision);
        let result = write_if(client, rpc, key, unchanged, op, &self.options, timeout).await?;
        Ok(match result {
            WriteResult::Applied(revision) if removes => Some(ModifyOutcome::Removed { revision }),
            WriteResult::Applied(revision) => Some(ModifyOutcome::Written { revision }),
            WriteResult::ConditionFailed(_) => None,
        })
    }

    fn conflict(&self, kind: ErrorKind, attempts: u32) -> Error {
        let reason = format!(
            "nothing was written, because others changed the key `{}` before each of {attempts} attempts",
            self.key.escape_ascii()
        );
        Error::new(kind, Outcome::Rejected, reason)
    }
}
