//! Orders the tasks of one session that wait for the same lock.
//!
//! A session has one key per lock in etcd. Without an order among its tasks, all of them would own the lock at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;

/// Locked by the task that uses the session's key in one lock queue.
pub(in crate::recipes) type LocalMutex = Arc<tokio::sync::Mutex<()>>;
pub(in crate::recipes) type LocalMutexGuard = OwnedMutexGuard<()>;

/// The local mutexes in use, by the prefix of their lock queue.
#[derive(Debug, Default)]
pub(in crate::recipes) struct LocalMutexes(Mutex<HashMap<Bytes, Weak<tokio::sync::Mutex<()>>>>);

impl LocalMutexes {
    /// Returns the mutex for a prefix, and removes mutexes that are no longer used.
    pub(in crate::recipes) fn get(&self, prefix: &Bytes) -> LocalMutex {
        let mut mutexes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mutex) = mutexes.get(prefix).and_then(Weak::upgrade) {
            return mutex;
        }
        mutexes.retain(|_, mutex| mutex.strong_count() > 0);
        let mutex = LocalMutex::default();
        mutexes.insert(prefix.clone(), Arc::downgrade(&mutex));
        mutex
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
        assert_eq!(mutexes.0.lock().unwrap().len(), 1);
    }
}
