//! A value that its driver and its callers poll, each on its own thread.
//!
//! There are two drivers: one on the client's thread and one on the runtime of the callers. One of them at a time
//! drives. Every wake leads to a poll: by the driver, by a caller that polls in its place, or by a thread that holds the
//! value at that moment. The test `concurrency_model` checks that.

use std::{
    sync::Arc,
    task::{Context, Waker},
};

use super::{
    driver_wakes::{DrivenBy, DriverWakes},
    poll_lock::{PollLock, Polled},
};

/// A value that several threads poll.
pub(crate) struct SharedPoll<T> {
    value: PollLock<T>,
    wakes: Arc<DriverWakes>,
    /// The waker of `wakes`. Every poll uses it, whichever thread polls.
    waker: Waker,
}

/// The result of an attempt to change the driver.
pub(crate) enum HandOver<R> {
    /// The other driver drives, and has polled.
    Done(R),
    /// The preparation did not succeed. Nothing changed.
    Refused,
    /// Another thread polls at this moment. Nothing changed.
    Busy,
}

impl<T> SharedPoll<T> {
    /// Creates a shared value that the client drives.
    pub(crate) fn new(value: T) -> Self {
        let wakes = DriverWakes::new();
        Self {
            value: PollLock::new(value),
            waker: wakes.clone().into(),
            wakes,
        }
    }

    pub(crate) fn driven_by(&self) -> DrivenBy {
        self.wakes.driven_by()
    }

    /// Wakes a driver, whether it drives or not.
    pub(crate) fn wake(&self, driver: DrivenBy) {
        self.wakes.wake_driver(driver);
    }

    /// Polls for `driver`, if it is the current driver. `waker` is the waker of the driver's task.
    pub(crate) fn poll_as(
        &self,
        driver: DrivenBy,
        waker: &Waker,
        poll: impl FnOnce(&mut T, &mut Context<'_>),
    ) {
        self.wakes.register(driver, waker);
        if self.driven_by() != driver {
            return;
        }
        let polled = self.run(poll);
        if polled.is_some_and(|polled| polled.again) {
            // The driver may have changed before the poll.
            self.wakes.wake_current_driver();
        }
    }

    /// Runs `work`. If that wakes the driver, polls on this thread instead.
    pub(crate) fn poll_after<R>(
        &self,
        work: impl FnOnce() -> R,
        poll: impl FnOnce(&mut T, &mut Context<'_>),
    ) -> R {
        let (result, woken) = self.wakes.defer_wakes_during(work);
        if woken {
            let (polled, woken) = self.wakes.defer_wakes_during(|| self.run(poll));
            if woken || polled.is_some_and(|polled| polled.again) {
                self.wakes.wake_current_driver();
            }
        }
        result
    }

    /// Changes the driver, if `prepare` returns a value. Polls once on this thread, and wakes the earlier driver.
    /// `waker` is the waker of the new driver's task.
    pub(crate) fn hand_over<R>(
        &self,
        to: DrivenBy,
        waker: &Waker,
        prepare: impl FnOnce(&mut T) -> Option<R>,
        poll: impl FnOnce(&mut T, &mut Context<'_>),
    ) -> HandOver<R> {
        let handed_over = self.run(|value, cx| {
            let prepared = prepare(value)?;
            self.wakes.register(to, waker);
            // Before the poll: wakes until now may have gone to the other driver.
            self.wakes.set_driven_by(to);
            poll(value, cx);
            Some(prepared)
        });
        let Some(handed_over) = handed_over else {
            return HandOver::Busy;
        };
        if handed_over.again {
            self.wakes.wake_current_driver();
        }
        let Some(prepared) = handed_over.result else {
            return HandOver::Refused;
        };
        self.wakes.wake_driver(to.other());
        HandOver::Done(prepared)
    }

    /// Locks the value and waits if another thread holds it. Only for closing the connection.
    pub(crate) fn lock_blocking(&self) -> impl std::ops::DerefMut<Target = T> {
        self.value.lock_blocking()
    }

    fn run<R>(&self, poll: impl FnOnce(&mut T, &mut Context<'_>) -> R) -> Option<Polled<R>> {
        let mut cx = Context::from_waker(&self.waker);
        self.value.run(|value| poll(value, &mut cx))
    }
}
