//! Work under locks and leaderships, in the order in which a client ends it.
//!
//! A client that shuts down must not give a lock away while work runs under it. Every lock, leadership and singleton of
//! the client registers a [`Holder`]. The shutdown then has these phases:
//! 1. [`Holders::begin_stop`] sets a signal. Work under a lock ends, and requests for locks fail.
//! 2. [`Holders::stopped`] waits until no holder is [`Holding`](HolderPhase::Holding), each for at most its grace. It
//!    returns the leases of the holders that did not stop. Those leases must not be revoked: they expire.
//! 3. [`Holders::released`] waits until every other holder is dropped, that is, until its key is deleted.
//! 4. The client revokes the other leases.
//!
//! The registry also counts the leases that will be revoked, so that the drop of a client waits only if a release is
//! pending.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

/// The holders of one client.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    table: Mutex<HolderTable>,
    /// Notified when a holder changes its phase or is dropped.
    changed: watch::Sender<()>,
    stopping: watch::Sender<bool>,
    revocable_leases: AtomicUsize,
}

impl Holders {
    /// Registers a key in a lock queue that is bound to this lease. It holds nothing yet.
    pub(crate) fn register(self: &Arc<Self>, lease: i64) -> Holder {
        Holder {
            number: self.table().insert(lease),
            holders: self.clone(),
        }
    }

    /// Counts a lease that is revoked when its handle is dropped, until the returned value is dropped.
    pub(crate) fn count_lease(self: &Arc<Self>) -> RevocableLease {
        self.revocable_leases.fetch_add(1, Ordering::SeqCst);
        RevocableLease(self.clone())
    }

    /// Returns whether there is a key to delete or a lease to revoke.
    pub(crate) fn has_pending_releases(&self) -> bool {
        !self.table().is_empty() || self.revocable_leases.load(Ordering::SeqCst) > 0
    }

    /// Returns a signal that is set when the client begins to shut down.
    pub(crate) fn stop_signal(&self) -> StopSignal {
        StopSignal(self.stopping.subscribe())
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Sets the signal.
    pub(crate) fn begin_stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits until no holder is holding, each for at most `grace` or its own grace, whichever is longer. Returns the
    /// leases of the holders that are still holding.
    pub(crate) async fn stopped(&self, grace: Duration) -> HashSet<i64> {
        let begin = Instant::now();
        let mut changed = self.changed.subscribe();
        loop {
            let limit = self.table().longest_grace(grace);
            let Some(limit) = limit.filter(|limit| begin.elapsed() < *limit) else {
                return self.table().held_leases();
            };
            // Whether it changed or the time is over, the table is read again.
            let _ = timeout(limit.saturating_sub(begin.elapsed()), changed.changed()).await;
        }
    }

    /// Waits until every holder that is not holding is dropped, for at most `limit`.
    pub(crate) async fn released(&self, limit: Duration) {
        let mut changed = self.changed.subscribe();
        let none_idle = async {
            while self.table().has_idle() {
                // Never fails: `self` owns the sender.
                let _ = changed.changed().await;
            }
        };
        let _ = timeout(limit, none_idle).await;
    }

    fn table(&self) -> MutexGuard<'_, HolderTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key in a lock queue, and whether work runs under it. Drop it when the key is deleted.
#[derive(Debug)]
pub(crate) struct Holder {
    number: u64,
    holders: Arc<Holders>,
}

impl Holder {
    /// Marks the lock as held. At the client's shutdown, its work has at least this long to stop. Returns `false`, and
    /// the work must not start, if the shutdown has begun.
    #[must_use]
    pub(crate) fn hold(&self, grace: Duration) -> bool {
        self.set_phase(HolderPhase::Holding { grace });
        // Checked last: a shutdown that begins now waits for this holder.
        let may_start = !self.holders.is_stopping();
        if !may_start {
            self.stop();
        }
        may_start
    }

    /// Marks the work under the lock as ended.
    pub(crate) fn stop(&self) {
        self.set_phase(HolderPhase::Idle);
    }

    fn set_phase(&self, phase: HolderPhase) {
        self.holders.table().set_phase(self.number, phase);
        self.holders.changed.send_replace(());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.holders.table().remove(self.number);
        self.holders.changed.send_replace(());
    }
}

/// Counts a lease that is revoked when its handle is dropped.
#[derive(Debug)]
pub(crate) struct RevocableLease(Arc<Holders>);

impl Drop for RevocableLease {
    fn drop(&mut self) {
        self.0.revocable_leases.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Signals to work under a lock that the client shuts down.
#[derive(Debug, Clone)]
pub(crate) struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    pub(crate) fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the client shuts down.
    pub(crate) async fn wait(&self) {
        // An error means that the client has ended.
        let _ = self.0.clone().wait_for(|stopping| *stopping).await;
    }
}

/// Whether work runs under a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HolderPhase {
    /// The key waits in its queue, or is being deleted.
    Idle,
    /// Work runs under the lock, and has this long to stop.
    Holding { grace: Duration },
}

/// Lease and phase of each holder.
#[derive(Debug, Default)]
struct HolderTable {
    holders: HashMap<u64, (i64, HolderPhase)>,
    next_number: u64,
}

impl HolderTable {
    fn insert(&mut self, lease: i64) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.holders.insert(number, (lease, HolderPhase::Idle));
        number
    }

    fn set_phase(&mut self, number: u64, phase: HolderPhase) {
        if let Some((_, current)) = self.holders.get_mut(&number) {
            *current = phase;
        }
    }

    fn remove(&mut self, number: u64) {
        self.holders.remove(&number);
    }

    fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    fn has_idle(&self) -> bool {
        let mut holders = self.holders.values();
        holders.any(|(_, phase)| *phase == HolderPhase::Idle)
    }

    /// Returns the longest grace of the holders that are holding, at least `least`. `None` if there are none.
    fn longest_grace(&self, least: Duration) -> Option<Duration> {
        let graces = self.holders.values().filter_map(|(_, phase)| match phase {
            HolderPhase::Holding { grace } => Some(least.max(*grace)),
            HolderPhase::Idle => None,
        });
        graces.max()
    }

    fn held_leases(&self) -> HashSet<i64> {
        let holders = self.holders.values();
        let held = holders.filter(|(_, phase)| matches!(phase, HolderPhase::Holding { .. }));
        held.map(|(lease, _)| *lease).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn longest_grace_is_of_work_that_still_runs() {
        let mut table = HolderTable::default();
        let (short, long, idle) = (table.insert(1), table.insert(2), table.insert(3));
        assert_eq!(table.longest_grace(SECOND), None);
        table.set_phase(short, HolderPhase::Holding { grace: SECOND / 2 });
        assert_eq!(table.longest_grace(SECOND), Some(SECOND));
        table.set_phase(long, HolderPhase::Holding { grace: 3 * SECOND });
        assert_eq!(table.longest_grace(SECOND), Some(3 * SECOND));
        table.set_phase(long, HolderPhase::Idle);
        assert_eq!(table.longest_grace(SECOND), Some(SECOND));
        assert_eq!(table.held_leases(), HashSet::from([1]));
        table.remove(short);
        assert_eq!(table.longest_grace(SECOND), None);
        assert!(!table.is_empty(), "the key of {idle} is not deleted");
    }

    #[tokio::test(start_paused = true)]
    async fn stop_waits_for_work_up_to_its_grace() {
        let holders = Arc::new(Holders::default());
        let (slow, stuck) = (holders.register(1), holders.register(2));
        assert!(slow.hold(3 * SECOND) && stuck.hold(Duration::ZERO));
        let signal = holders.stop_signal();
        let work = tokio::spawn(async move {
            signal.wait().await;
            tokio::time::sleep(2 * SECOND).await;
            slow.stop();
            slow
        });
        holders.begin_stop();
        let begin = Instant::now();
        assert_eq!(holders.stopped(SECOND).await, HashSet::from([2]));
        assert_eq!(begin.elapsed(), 2 * SECOND);
        let slow = work.await.unwrap();
        holders.released(SECOND).await;
        assert_eq!(begin.elapsed(), 3 * SECOND);
        drop(slow);
        holders.released(SECOND).await;
        assert_eq!(begin.elapsed(), 3 * SECOND);
        drop(stuck);
        assert!(!holders.has_pending_releases());
    }

    #[tokio::test]
    async fn signal_reaches_later_subscribers() {
        let holders = Arc::new(Holders::default());
        assert!(!holders.stop_signal().is_set());
        holders.begin_stop();
        let signal = holders.stop_signal();
        assert!(signal.is_set() && holders.is_stopping());
        signal.wait().await;
        assert!(!holders.register(1).hold(SECOND));
    }

    #[test]
    fn pending_releases_are_keys_and_leases() {
        let holders = Arc::new(Holders::default());
        assert!(!holders.has_pending_releases());
        let lease = holders.count_lease();
        assert!(holders.has_pending_releases());
        let key = holders.register(1);
        drop(lease);
        assert!(holders.has_pending_releases());
        drop(key);
        assert!(!holders.has_pending_releases());
    }
}
