//! Turns among the tasks of one session.
//!
//! A session has one key in a queue, however many of its tasks wait there: without turns, all of them would hold the
//! lock at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;

/// Ownership by the task whose turn it is.
pub(super) type Turn = OwnedMutexGuard<()>;
pub(super) type Waiting = Arc<tokio::sync::Mutex<()>>;

/// The queues in use, by their prefix.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Bytes, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    pub(super) fn of(&self, prefix: &Bytes) -> Waiting {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = queues.get(prefix).and_then(Weak::upgrade) {
            return waiting;
        }
        queues.retain(|_, waiting| waiting.strong_count() > 0);
        let waiting = Waiting::default();
        queues.insert(prefix.clone(), Arc::downgrade(&waiting));
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_queue_has_one_turn_and_an_unused_one_is_forgotten() {
        let turns = Turns::default();
        let (a, b) = (Bytes::from_static(b"a/"), Bytes::from_static(b"b/"));
        let turn = turns.of(&a).try_lock_owned().unwrap();
        assert!(turns.of(&a).try_lock_owned().is_err());
        assert!(turns.of(&b).try_lock_owned().is_ok());
        drop(turn);
        assert!(turns.of(&a).try_lock_owned().is_ok());
        let _c = turns.of(&b);
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
