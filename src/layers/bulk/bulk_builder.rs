//! The options of a bulk.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use super::{
    Bulk, BulkPartResult, BulkProgress,
    bulk_progress::{OnBulkPartResult, OnBulkProgress, Tally},
    chunk_delivery::Delivery,
    chunk_plan::ChunkLimits,
};
use crate::{client::Client, layers::get_many::DEFAULT_MAX_TXN_OPS};

const DEFAULT_MAX_BYTES: usize = 1 << 20;
const DEFAULT_MAX_IN_FLIGHT: usize = 16;
const DEFAULT_GIVE_UP_AFTER: Duration = Duration::from_secs(60);
const DEFAULT_MAX_FAILURES: usize = 1_000;

impl Client {
    /// Writes any number of keys, many per transaction and several transactions at once. See [`bulk`](super).
    pub fn bulk(&self) -> BulkBuilder {
        BulkBuilder {
            client: self.clone(),
            max_ops: DEFAULT_MAX_TXN_OPS,
            max_bytes: DEFAULT_MAX_BYTES,
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            timeout: None,
            give_up_after: DEFAULT_GIVE_UP_AFTER,
            max_failures: DEFAULT_MAX_FAILURES,
            on_unknown: OnUnknown::default(),
            on_progress: None,
            on_part_result: None,
        }
    }
}

/// What a bulk does with a transaction that may have been applied, because its response was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnUnknown {
    /// Sends it again: the same put twice is the same put. If another writer changes a key between the two, the second
    /// one overwrites that change.
    #[default]
    Repeat,
    /// Reads its keys. Sends it again unless all of them have the written values and no copy can still be applied, so
    /// watches see most writes only once. As with `Repeat`, sending it again overwrites another writer's change.
    ReadBack,
    /// Reports the writes as failed, with an unknown [outcome](crate::Outcome). A copy in flight may still be applied,
    /// even after a later write of the same key.
    Report,
}

/// Options of a [`Bulk`]; see [`Client::bulk`].
#[must_use = "a bulk accepts writes after `start`"]
pub struct BulkBuilder {
    client: Client,
    max_ops: usize,
    max_bytes: usize,
    max_in_flight: usize,
    timeout: Option<Duration>,
    give_up_after: Duration,
    max_failures: usize,
    on_unknown: OnUnknown,
    on_progress: Option<OnBulkProgress>,
    on_part_result: Option<OnBulkPartResult>,
}

impl BulkBuilder {
    /// Largest number of writes per transaction. If the server allows fewer (`--max-txn-ops`), the bulk finds out and
    /// sends smaller ones. Default: 128, as in etcd.
    pub fn max_ops(mut self, ops: usize) -> Self {
        self.max_ops = ops;
        self
    }

    /// Largest size of a transaction. If the server allows less (`--max-request-bytes`, 1.5 MiB by default), the bulk
    /// finds out and sends smaller ones. A larger write is sent alone. Default: 1 MiB.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Largest number of transactions in flight. Together with [`max_bytes`](Self::max_bytes) this bounds the memory: the
    /// writes in flight, their encoded form, and one more transaction that is being filled. Default: 16.
    pub fn max_in_flight(mut self, transactions: usize) -> Self {
        self.max_in_flight = transactions.max(1);
        self
    }

    /// Longest time of one attempt to send a transaction. Default: the client's `request_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long one transaction is repeated after transient errors, before the bulk stops. Default: 60 s, which is
    /// longer than an election or a restart of the cluster takes.
    pub fn give_up_after(mut self, time: Duration) -> Self {
        self.give_up_after = time;
        self
    }

    /// Number of failed parts, of one or more writes each, after which the bulk stops. Bounds the memory of the report. Default: 1,000.
    pub fn max_failures(mut self, failures: usize) -> Self {
        self.max_failures = failures.max(1);
        self
    }

    /// What to do with transactions whose outcome is unknown. Default: [`OnUnknown::Repeat`].
    pub fn on_unknown(mut self, reaction: OnUnknown) -> Self {
        self.on_unknown = reaction;
        self
    }

    /// Calls this function after each transaction, for example to draw a progress bar. It runs within the methods of
    /// the [`Bulk`]. Default: none.
    pub fn on_progress(mut self, callback: impl FnMut(BulkProgress) + Send + 'static) -> Self {
        self.on_progress = Some(Box::new(callback));
        self
    }

    /// Calls this function with the result of each part of the input. It runs within the methods of the [`Bulk`]. Failures
    /// are also in the report. Default: none.
    pub fn on_part_result(
        mut self,
        callback: impl FnMut(&BulkPartResult) + Send + 'static,
    ) -> Self {
        self.on_part_result = Some(Box::new(callback));
        self
    }

    /// Returns the bulk. It sends nothing before the first write.
    pub fn start(self) -> Bulk {
        let delivery = Delivery {
            client: self.client,
            timeout: self.timeout,
            give_up_after: self.give_up_after,
            on_unknown: self.on_unknown,
            limits: ChunkLimits::new(self.max_ops, self.max_bytes),
            revision: AtomicI64::new(0),
            cluster: AtomicU64::new(0),
        };
        let tally = Tally::new(self.max_failures, self.on_progress, self.on_part_result);
        Bulk::new(Arc::new(delivery), self.max_in_flight, tally)
    }
}

impl fmt::Debug for BulkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkBuilder")
            .field("max_ops", &self.max_ops)
            .field("max_bytes", &self.max_bytes)
            .field("max_in_flight", &self.max_in_flight)
            .finish_non_exhaustive()
    }
}
