//! Orders the tasks of one session that wait for the same lock.
//!
//! A session has one key per mutex in etcd. Without an order among its tasks, all of them would own the mutex at once.
//! For a lock that a session can claim several times, each claim has a local mutex of its own, which shows that the key
//! of this claim is in use. The key of a mutex is that of the first claim under the same prefix, and so is its local mutex:
//! `mutex("s/permits")` and `semaphore("s")` never use the same key at a time.

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
    /// One mutex per claim, by its number. A queue with one key per session uses the first one.
    claims: Mutex<HashMap<Bytes, Vec<WeakLocalMutex>>>,
}

impl LocalMutexes {
    /// Returns the mutex for a prefix, and removes mutexes that are no longer used.
    pub(in crate::recipes) fn get(&self, prefix: &Bytes) -> LocalMutex {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let mutexes = mutexes_of(&mut claims, prefix);
        if let Some(mutex) = mutexes.first().and_then(Weak::upgrade) {
            return mutex;
        }
        let mutex = LocalMutex::default();
        set(mutexes, 0, &mutex);
        mutex
    }

    /// Locks the mutex of the lowest claim under a prefix that is not in use. Returns the number of the claim as well.
    pub(in crate::recipes) fn lock_claim(&self, prefix: &Bytes) -> (usize, LocalMutexGuard) {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let mutexes = mutexes_of(&mut claims, prefix);
        let used = mutexes.iter().rposition(is_used).map_or(0, |last| last + 1);
        mutexes.truncate(used);
        let mut claim = 0;
        loop {
            let mutex = mutexes.get(claim).and_then(Weak::upgrade);
            let mutex = mutex.unwrap_or_default();
            if let Ok(guard) = mutex.clone().try_lock_owned() {
                set(mutexes, claim, &mutex);
                return (claim, guard);
            }
            claim += 1;
        }
    }
}

fn is_used(mutex: &WeakLocalMutex) -> bool {
    mutex.strong_count() > 0
}

/// Returns the mutexes of a prefix. If it is a new one, removes those of prefixes that are no longer used.
fn mutexes_of<'a>(
    claims: &'a mut HashMap<Bytes, Vec<WeakLocalMutex>>,
    prefix: &Bytes,
) -> &'a mut Vec<WeakLocalMutex> {
    if !claims.contains_key(prefix) {
        claims.retain(|_, mutexes| mutexes.iter().any(is_used));
    }
    claims.entry(prefix.clone()).or_default()
}

/// Sets the mutex of a claim, whose number is at most that of the next new one.
fn set(mutexes: &mut Vec<WeakLocalMutex>, claim: usize, mutex: &LocalMutex) {
    let weak = Arc::downgrade(mutex);
    match mutexes.get_mut(claim) {
        Some(unused) => *unused = weak,
        None => mutexes.push(weak),
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
        let _other_in_use = mutexes.get(&Bytes::from_static(b"c/"));
        assert_eq!(mutexes.claims.lock().unwrap().len(), 2);
    }

    #[test]
    fn single_key_is_that_of_first_claim() {
        let mutexes = LocalMutexes::default();
        let prefix = Bytes::from_static(b"s/permits/");
        let single = mutexes.get(&prefix).try_lock_owned().unwrap();
        let (claim, claimed) = mutexes.lock_claim(&prefix);
        assert_eq!(claim, 1);
        drop(single);
        let (first, _first_claimed) = mutexes.lock_claim(&prefix);
        assert_eq!(first, 0);
        assert!(mutexes.get(&prefix).try_lock_owned().is_err());
        drop(claimed);
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
