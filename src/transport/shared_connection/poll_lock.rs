//! A lock around a value that several threads poll. Polls never wait for it.
//!
//! A thread that finds the lock taken leaves its work to the holder: [`PollLock::run`] returns to the holder that it
//! must arrange another poll. So no work is forgotten, and no thread is blocked by another one.

use std::sync::{PoisonError, TryLockError};

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, fence};

/// A value that one thread at a time polls.
pub(crate) struct PollLock<T> {
    value: Mutex<T>,
    /// Set by a thread that found the lock taken.
    missed: AtomicBool,
}

/// The result of a poll under a [`PollLock`].
pub(crate) struct Polled<R> {
    pub(crate) result: R,
    /// Whether another thread wanted to poll meanwhile. The value must then be polled again.
    pub(crate) again: bool,
}

impl<T> PollLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            missed: AtomicBool::new(false),
        }
    }

    /// Runs `poll` with the value. Returns `None` if another thread holds it: that thread is then responsible for
    /// everything that happened before this call.
    pub(crate) fn run<R>(&self, poll: impl FnOnce(&mut T) -> R) -> Option<Polled<R>> {
        let mut value = self.try_lock().or_else(|| {
            self.missed.store(true, Ordering::SeqCst);
            // Either the holder sees the flag after it unlocks, or this thread sees the lock free.
            fence(Ordering::SeqCst);
            self.try_lock()
        })?;
        // Reads the flag, too, so that `poll` sees the work of the threads that set it.
        self.missed.swap(false, Ordering::SeqCst);
        let result = poll(&mut value);
        drop(value);
        fence(Ordering::SeqCst);
        Some(Polled {
            result,
            again: self.missed.load(Ordering::SeqCst),
        })
    }

    /// Locks the value and waits if another thread holds it. Only for closing the connection.
    pub(crate) fn lock_blocking(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            // A poll that panicked leaves the value without its connection.
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
