//! The handle of a bulk.

use std::{collections::HashMap, fmt, pin::pin, sync::Arc};

use tokio::task::{Id, JoinError, JoinSet};
use tokio_stream::{Stream, StreamExt};

use super::{
    BulkFailed, BulkProgress, BulkProgressUpdates, BulkReport, BulkWrite,
    bulk_progress::Tally,
    chunk_delivery::{Delivered, DeliveredPart, Delivery},
    chunk_plan::{Chunk, ChunkPlanner},
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    request::IntoBytes,
};

/// A sink of puts and deletes; see [`bulk`](super). Call [`finish`](Self::finish) at the end: dropping the bulk cancels
/// transactions in flight, whose outcome is then unknown, and discards the writes that wait.
///
/// Transactions run as tasks on the current tokio runtime. Their results are handled within the methods of the bulk.
#[must_use = "call `finish` to write the last keys and to learn whether all writes succeeded"]
pub struct Bulk {
    delivery: Arc<Delivery>,
    planner: ChunkPlanner,
    max_in_flight: usize,
    in_flight: JoinSet<Delivered>,
    /// What a task writes, for the report if it ends without a result.
    tasks: HashMap<Id, DeliveredPart>,
    tally: Tally,
}

impl Bulk {
    pub(super) fn new(delivery: Arc<Delivery>, max_in_flight: usize, tally: Tally) -> Self {
        Self {
            delivery,
            planner: ChunkPlanner::default(),
            max_in_flight,
            in_flight: JoinSet::new(),
            tasks: HashMap::new(),
            tally,
        }
    }

    /// Writes a key. Returns once the write is accepted; waits while as many transactions are in flight as allowed.
    ///
    /// Fails if the bulk has stopped, with the reason. If this future is dropped before it returns, the write is not
    /// accepted.
    pub async fn put(&mut self, key: impl IntoBytes, value: impl IntoBytes) -> Result<()> {
        self.send(BulkWrite::put(key, value)).await
    }

    /// Deletes a key. Like [`put`](Self::put) otherwise.
    pub async fn delete(&mut self, key: impl IntoBytes) -> Result<()> {
        self.send(BulkWrite::delete(key)).await
    }

    /// Accepts a write, for example a put with a lease. Like [`put`](Self::put) otherwise.
    pub async fn send(&mut self, write: impl Into<BulkWrite>) -> Result<()> {
        self.await_room().await?;
        self.accept(write.into());
        Ok(())
    }

    /// Accepts all writes of a stream, no faster than they are written. Fails if the bulk has stopped. If this future is
    /// dropped, all writes taken from the stream are accepted.
    pub async fn send_all<S>(&mut self, writes: S) -> Result<()>
    where
        S: Stream<Item: Into<BulkWrite>>,
    {
        let mut writes = pin!(writes);
        loop {
            // First, so that no write is lost between the stream and the bulk.
            self.await_room().await?;
            let Some(write) = writes.next().await else {
                return Ok(());
            };
            self.accept(write.into());
        }
    }

    /// Waits until a write can be accepted. Fails if the bulk has stopped.
    async fn await_room(&mut self) -> Result<()> {
        while self.planner.is_full(&self.delivery.limits) && self.tally.stopped().is_none() {
            if !self.start_chunk() {
                self.await_one().await;
            }
        }
        match self.tally.stopped() {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    fn accept(&mut self, write: BulkWrite) {
        self.planner.push(write);
        if self.planner.is_full(&self.delivery.limits) {
            if self.collect_ready() {
                self.tally.publish(self.planner.accepted());
            }
            self.start_chunk();
        }
    }

    /// Sends the writes that wait for a full transaction, and waits until no transaction is in flight. Fails if the
    /// bulk has stopped; single failures are in the report.
    pub async fn flush(&mut self) -> Result<()> {
        while self.tally.stopped().is_none() && !self.planner.is_empty() {
            if !self.start_chunk() {
                self.await_one().await;
            }
        }
        while !self.in_flight.is_empty() {
            self.await_one().await;
        }
        match self.tally.stopped() {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    /// Writes what is left and returns the report. Fails if a write failed or its outcome is unknown; the error has the
    /// report as well.
    pub async fn finish(mut self) -> Result<BulkReport, BulkFailed> {
        // The reason of a stop is part of the report.
        let _ = self.flush().await;
        let accepted = self.planner.accepted();
        self.tally.publish(accepted);
        self.tally.finish(accepted)
    }

    /// Returns the progress so far.
    pub fn progress(&self) -> BulkProgress {
        self.tally.progress(self.planner.accepted())
    }

    /// Returns a stream of the progress, starting with the current one. It ends with the bulk.
    pub fn progress_updates(&self) -> BulkProgressUpdates {
        self.tally.updates()
    }

    /// Starts the next transaction. Returns `false` if none may be started now.
    fn start_chunk(&mut self) -> bool {
        if self.in_flight.len() >= self.max_in_flight {
            return false;
        }
        let Some(chunk) = self.planner.next_chunk(&self.delivery.limits) else {
            return false;
        };
        let lost = lost(&chunk);
        let task = self.in_flight.spawn(self.delivery.clone().deliver(chunk));
        self.tasks.insert(task.id(), lost);
        true
    }

    /// Waits for a transaction in flight. Returns at once if there is none.
    async fn await_one(&mut self) {
        if let Some(delivered) = self.in_flight.join_next_with_id().await {
            self.record(delivered);
            self.collect_ready();
            self.tally.publish(self.planner.accepted());
        }
    }

    /// Records the transactions that have ended. Returns whether there was one.
    fn collect_ready(&mut self) -> bool {
        let mut any = false;
        while let Some(delivered) = self.in_flight.try_join_next_with_id() {
            self.record(delivered);
            any = true;
        }
        any
    }

    fn record(&mut self, ended: Result<(Id, Delivered), JoinError>) {
        match ended {
            Ok((task, Delivered { writes, parts })) => {
                self.tasks.remove(&task);
                self.planner.completed(&writes);
                for part in parts {
                    self.tally.record(part);
                }
            }
            // The runtime shuts down, or a policy of the application panicked.
            Err(error) => {
                if let Some(lost) = self.tasks.remove(&error.id()) {
                    self.tally.record(lost);
                }
            }
        }
    }
}

/// Returns the result of a chunk whose task ends without one.
fn lost(Chunk { start, writes }: &Chunk) -> DeliveredPart {
    let key =
        |write: Option<&BulkWrite>| write.map(|write| write.key().clone()).unwrap_or_default();
    DeliveredPart {
        positions: *start..*start + writes.len() as u64,
        first_key: key(writes.first()),
        last_key: key(writes.last()),
        bytes: 0,
        result: Err(Error::new(
            ErrorKind::Internal,
            Outcome::Unknown,
            "the task of a transaction ended without a result; its writes may have been applied",
        )),
        stop: true,
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("progress", &self.progress())
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
