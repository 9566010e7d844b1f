//! Orders the tasks of one session that wait for the same lock.
//!
//! A session has one key per mutex in etcd. Without an order among its tasks, all of them would own the mutex at once.
//! For a lock that a session can claim several times, each claim has a local mutex of its own, which shows that the key
//! of this claim is in use.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;

/// Locked by the task that uses the session's key in one lock queue.
pub(in crate::recipes) type LocalMutex = Arc<tokio::sync::Mutex<()>>;
pub(in crate::recipes) type LocalMutexGuard = OwnedMutexGuard<()>;

type WeakLocalMutex = Weak<tokio::sync::Mutex<()>>;

/// The local mutexes in use, by the prefix of their keys.
#[derive(Debug, Default)]
pub(in crate::recipes) struct LocalMutexes {
    /// For queues with one key per session.
    single: Mutex<HashMap<Bytes, WeakLocalMutex>>,
    /// For queues with several keys per session: one mutex per claim, by its number.
    claims: Mutex<HashMap<Bytes, Vec<WeakLocalMutex>>>,
}

impl LocalMutexes {
    /// Returns the mutex for a prefix, and removes mutexes that are no longer used.
    pub(in crate::recipes) fn get(&self, prefix: &Bytes) -> LocalMutex {
        let mut mutexes = self.single.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mutex) = mutexes.get(prefix).and_then(Weak::upgrade) {
            return mutex;
        }
        mutexes.retain(|_, mutex| mutex.strong_count() > 0);
        let mutex = LocalMutex::default();
        mutexes.insert(prefix.clone(), Arc::downgrade(&mutex));
        mutex
    }

    /// Locks the mutex of the lowest claim under a prefix that is not in use. Returns the number of the claim as well.
    pub(in crate::recipes) fn lock_claim(&self, prefix: &Bytes) -> (usize, LocalMutexGuard) {
        let is_used = |mutex: &WeakLocalMutex| mutex.strong_count() > 0;
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if !claims.contains_key(prefix) {
            claims.retain(|_, mutexes| mutexes.iter().any(is_used));
        }
        let mutexes = claims.entry(prefix.clone()).or_default();
        let used = mutexes.iter().rposition(is_used).map_or(0, |last| last + 1);
        mutexes.truncate(used);
        let mut claim = 0;
        loop {
            let mutex = mutexes.get(claim).and_then(Weak::upgrade);
            let mutex = mutex.unwrap_or_default();
            if let Ok(guard) = mutex.clone().try_lock_owned() {
                let weak = Arc::downgrade(&mutex);
                match mutexes.get_mut(claim) {
                    Some(unused) => *unused = weak,
                    None => mutexes.push(weak),
                }
                return (claim, guard);
            }
            claim += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_has_one_mutex_until_unused() {
        let mutexes = LocalMutexes::default();
        let (a, b) = (Bytes::from_static(b"a/"), Bytes::from_static(b"b/"));
        let guard = mutexes.get(&a).try_lock_owned().unwrap();
        assert!(mutexes.get(&a).try_lock_owned().is_err());
        assert!(mutexes.get(&b).try_lock_owned().is_ok());
        drop(guard);
        assert!(mutexes.get(&a).try_lock_owned().is_ok());
        let _in_use = mutexes.get(&b);
        assert_eq!(mutexes.single.lock().unwrap().len(), 1);
    }

    #[test]
    fn claims_get_lowest_unused_number() {
        let mutexes = LocalMutexes::default();
        let (a, b) = (Bytes::from_static(b"a/"), Bytes::from_static(b"b/"));
        let (first, guard) = mutexes.lock_claim(&a);
        let (second, second_guard) = mutexes.lock_claim(&a);
        let (third, _third_guard) = mutexes.lock_claim(&a);
        assert_eq!((first, second, third), (0, 1, 2));
        assert_eq!(mutexes.lock_claim(&b).0, 0);
        // The mutex of a claim stays the same one while anybody refers to it.
        let followed = LocalMutexGuard::mutex(&guard).clone();
        drop((guard, second_guard));
        let (again, guard) = mutexes.lock_claim(&a);
        assert_eq!(again, 0);
        assert!(Arc::ptr_eq(&followed, LocalMutexGuard::mutex(&guard)));
        assert_eq!(mutexes.lock_claim(&a).0, 1);
        assert_eq!(mutexes.claims.lock().unwrap()[&a].len(), 3);
    }

    #[test]
    fn unused_claims_are_forgotten() {
        let mutexes = LocalMutexes::default();
        let (a, b) = (Bytes::from_static(b"a/"), Bytes::from_static(b"b/"));
        let guards: Vec<_> = (0..5).map(|_| mutexes.lock_claim(&a)).collect();
        drop(guards);
        let _in_use = mutexes.lock_claim(&b);
        assert_eq!(mutexes.claims.lock().unwrap().len(), 1);
    }
}
