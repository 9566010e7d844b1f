//! An item while it is taken: its ownership, and the task that ends it when the visibility time-out has passed.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::watch, time::Instant};

use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{IntoOps, Txn, delete, put},
    recipes::{
        lock_queue::remove, mutex::Ownership, ownership_lost::OwnershipLost, session::Session,
    },
    retry::availability::{RETRY_DELAY, is_temporary},
    runtime::{backoff::Backoff, holders::Holder},
};

/// Delays between deletes of a claim that etcd refuses.
pub(super) const REFUSED_BACKOFF: Backoff = Backoff::new(RETRY_DELAY, Duration::from_secs(5));

/// The shortest TTL of a lease.
const MIN_DELAY: Duration = Duration::from_secs(1);

/// What the handle of an item and its delivery share.
pub(super) struct ItemHold {
    pub(super) ownership: Ownership,
    item: Bytes,
    /// Whether it was neither completed nor given back.
    is_taken: AtomicBool,
    /// When the item is ready again; `None` once its claim is gone or bound to another lease.
    overdue_at: watch::Sender<Option<Instant>>,
    /// Makes a shutdown of the client wait for the work on the item.
    holder: Mutex<Option<Holder>>,
    /// Kept open while the item is taken.
    _session: Arc<Session>,
}

impl ItemHold {
    /// Starts to hold an item. Fails if the client shuts down. Runs on the client's thread.
    pub(super) fn start(
        ownership: Ownership,
        item: Bytes,
        session: Arc<Session>,
        visibility: Duration,
    ) -> Result<Arc<Self>> {
        let holder = ownership.client().holders().register(ownership.lease());
        let may_start = holder.hold(Duration::ZERO);
        let overdue_at = watch::Sender::new(Some(deadline_in(visibility)));
        let task = end_when_overdue(ownership.for_background(), overdue_at.subscribe());
        actix_rt::spawn(task);
        let hold = Self {
            ownership,
            item,
            is_taken: AtomicBool::new(true),
            overdue_at,
            holder: Mutex::new(Some(holder)),
            _session: session,
        };
        if may_start {
            return Ok(Arc::new(hold));
        }
        hold.overdue_at.send_replace(Some(Instant::now()));
        Err(Error::shut_down())
    }

    /// Returns how long the item is certain to be taken.
    pub(super) fn remaining(&self) -> Duration {
        if self.ownership.loss_now().is_some() {
            return Duration::ZERO;
        }
        let overdue_at = *self.overdue_at.borrow();
        let visible_in = overdue_at.map(|at| at.saturating_duration_since(Instant::now()));
        visible_in
            .unwrap_or_default()
            .min(self.ownership.remaining())
    }

    pub(super) fn extend(&self, duration: Duration) -> Result<()> {
        let mut loss = None;
        let extended = self.overdue_at.send_if_modified(|overdue_at| {
            loss = self.ownership.loss_now();
            let may_extend = overdue_at.is_some() && loss.is_none();
            if may_extend {
                *overdue_at = Some(deadline_in(duration));
            }
            may_extend
        });
        match loss {
            Some(loss) => Err(loss.into()),
            None if extended => Ok(()),
            None => Err(no_longer_taken()),
        }
    }

    /// Returns whether the item is completed or given back.
    pub(super) fn has_ended(&self) -> bool {
        !self.is_taken.load(SeqCst)
    }

    /// Applies operations and removes the item, if it is still taken.
    pub(super) async fn complete(&self, ops: impl IntoOps) -> Result<()> {
        if self.has_ended() {
            return Err(no_longer_taken());
        }
        let (item, claim) = (delete(&self.item), delete(self.ownership.key()));
        let txn = self.ownership.client().txn().then(ops).then([item, claim]);
        let write = txn.clone().exactly_once().fenced_by(&self.ownership);
        let completed = match write.await {
            // No marker can be created any more, but the client still sends requests.
            Err(error) if error.kind() == ErrorKind::Shutdown => {
                self.complete_unmarked(&txn).await?
            }
            written => written.map(|_| true)?,
        };
        self.end();
        if completed {
            Ok(())
        } else {
            Err(OwnershipLost::Taken.into())
        }
    }

    /// Completes the item without a marker. Returns `false` if it was no longer taken.
    async fn complete_unmarked(&self, txn: &Txn<Client>) -> Result<bool> {
        let txn = txn.clone().when(self.ownership.conditions());
        let unknown = match txn.clone().await {
            Err(error) if error.outcome() == Outcome::Unknown => error,
            completed => return Ok(completed?.succeeded),
        };
        // Its conditions hold only if the first copy was not applied, and then that one is not applied later either.
        match txn.await {
            Ok(repeated) if repeated.succeeded => Ok(true),
            _ => Err(unknown),
        }
    }

    /// Makes the item ready for the next taker. If this fails or is dropped, it continues in the background.
    pub(super) async fn put_back(&self) -> Result<()> {
        self.begin_return()?;
        let _in_background = OverdueOnDrop(&self.overdue_at);
        let removed = remove(&self.ownership).await?;
        self.end();
        if removed {
            Ok(())
        } else {
            Err(OwnershipLost::Taken.into())
        }
    }

    /// As [`put_back`](Self::put_back), but repeats it until the claim is gone.
    pub(super) async fn give_back(&self) {
        tokio::select! {
            biased;
            _ = self.ownership.session_lease.ended() => {}
            () = remove_until_gone(&self.ownership) => {}
        }
        self.end();
    }

    /// Binds the claim to a lease that ends after the delay.
    pub(super) async fn retry_after(&self, delay: Duration) -> Result<()> {
        if self.has_ended() {
            return Err(no_longer_taken());
        }
        let delay = delay.max(MIN_DELAY);
        // Before the ownership ends, which an error leaves as it is. A lease that is not used expires.
        let lease = self.ownership.client().lease(delay).await?;
        self.begin_return()?;
        self.overdue_no_later_than(deadline_in(delay));
        let claim = put(self.ownership.key(), "").ignore_value().lease(&lease);
        let bound = self.ownership.txn().then(claim).exactly_once().await?;
        self.end();
        if bound.succeeded {
            Ok(())
        } else {
            Err(OwnershipLost::Taken.into())
        }
    }

    /// Ends the visibility time-out earlier than it would end by itself.
    fn overdue_no_later_than(&self, limit: Instant) {
        self.overdue_at.send_if_modified(|overdue_at| {
            let is_earlier = overdue_at.is_some_and(|at| limit < at);
            if is_earlier {
                *overdue_at = Some(limit);
            }
            is_earlier
        });
    }

    /// Ends the ownership before the request that gives the item back: that request can be applied although it fails.
    fn begin_return(&self) -> Result<()> {
        if !self.is_taken.swap(false, SeqCst) {
            return Err(no_longer_taken());
        }
        self.ownership.early_end.set(OwnershipLost::Taken);
        Ok(())
    }

    /// Ends the ownership and its task.
    fn end(&self) {
        self.is_taken.store(false, SeqCst);
        self.ownership.early_end.set(OwnershipLost::Taken);
        self.overdue_at.send_replace(None);
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        *holder = None;
    }
}

/// When dropped, lets the task of an item delete its claim at once, unless that is done.
struct OverdueOnDrop<'a>(&'a watch::Sender<Option<Instant>>);

impl Drop for OverdueOnDrop<'_> {
    fn drop(&mut self) {
        self.0.send_if_modified(|overdue_at| {
            let is_pending = overdue_at.is_some();
            *overdue_at = is_pending.then(Instant::now);
            is_pending
        });
    }
}

/// Waits until the item is overdue, and deletes its claim. Returns early if the item is completed or given back, or the
/// lease has ended.
async fn end_when_overdue(ownership: Ownership, overdue_at: watch::Receiver<Option<Instant>>) {
    let delete_when_overdue = async {
        if overdue(&ownership, overdue_at).await {
            remove_until_gone(&ownership).await;
        }
    };
    tokio::select! {
        biased;
        // etcd deletes the claim with its lease.
        _ = ownership.session_lease.ended() => {}
        () = delete_when_overdue => {}
    }
}

/// Waits until the item is overdue, and ends its ownership. Returns `false` if that was ended before.
async fn overdue(ownership: &Ownership, mut overdue_at: watch::Receiver<Option<Instant>>) -> bool {
    loop {
        let at = {
            // Locked until the ownership has ended, so that the item is not extended in between.
            let overdue_at = overdue_at.borrow_and_update();
            match *overdue_at {
                None => return false,
                Some(at) if at > Instant::now() => at,
                Some(_) => {
                    ownership.early_end.set(OwnershipLost::TimedOut);
                    return true;
                }
            }
        };
        tokio::select! {
            biased;
            // Once the item is dropped, the time does not change any more.
            Ok(()) = overdue_at.changed() => {}
            () = tokio::time::sleep_until(at) => {}
        }
    }
}

/// Deletes a claim. Repeats that until it is gone or the client is shut down.
async fn remove_until_gone(ownership: &Ownership) {
    let mut backoff = REFUSED_BACKOFF.start();
    loop {
        match remove(ownership).await {
            Ok(_) => return,
            Err(error) if error.kind() == ErrorKind::Shutdown => return,
            Err(error) if is_temporary(&error) => tokio::time::sleep(RETRY_DELAY).await,
            Err(error) => {
                tracing::warn!(%error, key = ?ownership.key(), "claim of a queue's item not deleted yet");
                tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
            }
        }
    }
}

fn no_longer_taken() -> Error {
    let reason = "the item was already completed or given back";
    Error::new(ErrorKind::LockLost, Outcome::NotSent, reason)
}
