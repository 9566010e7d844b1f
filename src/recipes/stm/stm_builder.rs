//! The options of a transaction, and the loop over its attempts.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Isolation, Transaction,
    commit::{StmFence, commit},
    transaction::{Attempted, deadline_passed},
};
use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    layers::{exactly_once::Fence, get_many::DEFAULT_MAX_TXN_OPS},
    runtime::backoff::Backoff,
};

const DEFAULT_MAX_ATTEMPTS: u32 = 100;

/// Delays between attempts. With much jitter, so that clients that conflict do not meet again.
const CONFLICT_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(4), Duration::from_millis(250)).jitter(0.75);

impl Client {
    /// Runs closures as transactions: their writes are applied together or not at all. See [`stm`](crate::recipes::stm).
    pub fn stm(&self) -> Stm {
        Stm {
            client: self.clone(),
            isolation: Isolation::default(),
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            timeout: None,
            max_ops: DEFAULT_MAX_TXN_OPS,
            fences: Vec::new(),
        }
    }
}

/// The options of transactions. Made by [`Client::stm`]; can be cloned and used any number of times.
#[derive(Debug, Clone)]
#[must_use = "a transaction runs with `run`"]
pub struct Stm {
    client: Client,
    isolation: Isolation,
    max_attempts: u32,
    timeout: Option<Duration>,
    max_ops: usize,
    fences: Vec<StmFence>,
}

impl Stm {
    /// Sets what a transaction is protected from. Default: [`Isolation::SerializableSnapshot`].
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Largest number of attempts, at least 1. Default: 100; usually the [timeout](Self::timeout) ends a transaction
    /// before.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Longest time for all attempts together, including the closure. Default: the client's `request_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The largest number of operations that the servers allow per transaction (`--max-txn-ops`). Two are used to apply
    /// the commit exactly once, and two for each fence. The others are the largest number of writes, and of conditions:
    /// one per key or prefix that was read, and at the default level also one per key that is only written. Default: 128,
    /// as in etcd.
    pub fn max_ops(mut self, ops: usize) -> Self {
        self.max_ops = ops;
        self
    }

    /// Writes only while this lock or leadership is held. Otherwise the commit fails with [`ErrorKind::LockLost`], and
    /// nothing is written. An attempt without writes does not check it. Can be called several times. Default: no such
    /// condition.
    pub fn fenced_by(mut self, fence: &impl Fence) -> Self {
        self.fences.push(StmFence::new(fence));
        self
    }

    /// Runs a closure until its writes are applied, and returns its result. The closure must have no other effects,
    /// because it runs again after a conflict.
    ///
    /// An error of the closure is returned at once, and nothing is written. Otherwise fails
    /// - with [`ErrorKind::Conflict`] if each attempt conflicted or its snapshot was compacted, up to the largest number of
    ///   attempts or the timeout: nothing was written,
    /// - with the error of a read that the closure ignored: nothing was written,
    /// - with [`ErrorKind::DeadlineExceeded`] if the timeout ends during an attempt: nothing was written, unless the
    ///   outcome is unknown,
    /// - with [`ErrorKind::TooManyOps`] if one transaction cannot have so many reads or writes; it was not sent,
    /// - with the error of the commit, whose writes are applied [exactly once](crate::layers::exactly_once), or surely
    ///   not: its outcome is [`Outcome::Unknown`] only if it could not be found out before the timeout.
    ///
    /// If the future is dropped, the closure ends. Its writes are applied only if the commit was already sent.
    pub async fn run<T, E, F>(self, mut work: impl FnMut(Transaction) -> F) -> Result<T, E>
    where
        E: From<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let timeout = self
            .timeout
            .unwrap_or_else(|| self.client.request_timeout());
        let deadline = deadline_in(timeout);
        let mut backoff = CONFLICT_BACKOFF.start();
        let (mut number, mut outdated) = (1, 0);
        loop {
            let attempt = Attempted::new(self.client.clone(), self.isolation, deadline, number);
            let worked = timeout_at(deadline, work(Transaction::new(attempt.clone()))).await;
            let sets = attempt.end();
            match worked {
                Ok(_) if sets.outdated => outdated += 1,
                Ok(Ok(result)) => {
                    if let Some(error) = &sets.failed_read {
                        return Err(error.clone().into());
                    }
                    if commit(&attempt, sets, self.max_ops, &self.fences).await? {
                        return Ok(result);
                    }
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(deadline_passed().into()),
            }
            let delay = backoff.next_delay(fastrand::f64());
            if number >= self.max_attempts || Instant::now() + delay >= deadline {
                return Err(conflict(number, outdated).into());
            }
            tracing::debug!(
                attempt = number,
                ?delay,
                "transaction conflicted, run it again"
            );
            sleep(delay).await;
            number += 1;
        }
    }
}

/// Returns the error after the last attempt, if in this many of them a read failed because of a compaction.
fn conflict(attempts: u32, outdated: u32) -> Error {
    let cause = match outdated {
        0 => "other clients changed the keys of the transaction",
        _ if outdated == attempts => "etcd compacted the snapshot that the transaction read",
        _ => "other clients changed the keys of the transaction, or etcd compacted its snapshot,",
    };
    let reason = format!("{cause} during each of its {attempts} attempts");
    Error::new(ErrorKind::Conflict, Outcome::Rejected, reason)
}
