//! The waker of a connection. It wakes the task that drives the connection, unless the current thread is about to poll
//! the connection itself.

use std::{
    cell::Cell,
    sync::Arc,
    task::{Wake, Waker},
};

use super::sync::{AtomicBool, AtomicWaker, Ordering, thread_local};

thread_local! {
    // loom's `thread_local` accepts no `const` block.
    #[allow(clippy::missing_const_for_thread_local)]
    /// The connection whose wakes this thread defers.
    static DEFERRAL: Cell<Deferral> = Cell::new(Deferral { connection: 0, woken: false });
}

#[derive(Clone, Copy)]
struct Deferral {
    /// Address of the [`DriverWakes`], or 0.
    connection: usize,
    /// Whether a wake was deferred.
    woken: bool,
}

/// Which driver a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrivenBy {
    /// The driver on the client's thread.
    Client,
    /// The driver on the runtime of the callers.
    Callers,
}

impl DrivenBy {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Callers,
            Self::Callers => Self::Client,
        }
    }
}

/// Wakes the drivers of a connection.
pub(crate) struct DriverWakes {
    client_driver: AtomicWaker,
    caller_driver: AtomicWaker,
    by_callers: AtomicBool,
}

impl DriverWakes {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            client_driver: AtomicWaker::new(),
            caller_driver: AtomicWaker::new(),
            by_callers: AtomicBool::new(false),
        })
    }

    /// Sets the waker of a driver.
    pub(crate) fn register(&self, driver: DrivenBy, waker: &Waker) {
        self.waker(driver).register(waker);
    }

    /// Wakes a driver, whether it drives or not.
    pub(crate) fn wake_driver(&self, driver: DrivenBy) {
        self.waker(driver).wake();
    }

    /// Wakes the current driver.
    pub(crate) fn wake_current_driver(&self) {
        self.wake_driver(self.driven_by());
    }

    pub(crate) fn driven_by(&self) -> DrivenBy {
        if self.by_callers.load(Ordering::SeqCst) {
            DrivenBy::Callers
        } else {
            DrivenBy::Client
        }
    }

    /// Changes the driver that is woken. The caller must poll the connection after this: earlier wakes went to the
    /// other driver.
    pub(crate) fn set_driven_by(&self, driver: DrivenBy) {
        self.by_callers
            .store(driver == DrivenBy::Callers, Ordering::SeqCst);
    }

    /// Runs a closure and defers the wakes of this connection by this thread. Returns the result, and whether a wake was
    /// deferred: the caller must then poll the connection or wake its driver.
    pub(crate) fn defer_wakes_during<R>(&self, run: impl FnOnce() -> R) -> (R, bool) {
        let before = DEFERRAL.with(|deferral| {
            deferral.replace(Deferral {
                connection: self.address(),
                woken: false,
            })
        });
        let restore = RestoreDeferral(before);
        let result = run();
        let woken = DEFERRAL.with(|deferral| deferral.get().woken);
        drop(restore);
        (result, woken)
    }

    /// Defers a wake if this thread runs such a closure for this connection. Returns whether it did.
    fn try_defer(&self) -> bool {
        DEFERRAL.with(|deferral| {
            let defers = deferral.get().connection == self.address();
            if defers {
                deferral.set(Deferral {
                    connection: self.address(),
                    woken: true,
                });
            }
            defers
        })
    }

    fn waker(&self, driver: DrivenBy) -> &AtomicWaker {
        match driver {
            DrivenBy::Client => &self.client_driver,
            DrivenBy::Callers => &self.caller_driver,
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Wake for DriverWakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.try_defer() {
            self.wake_current_driver();
        }
    }
}

/// Restores the deferral of the thread, also after a panic.
struct RestoreDeferral(Deferral);

impl Drop for RestoreDeferral {
    fn drop(&mut self) {
        DEFERRAL.with(|deferral| deferral.set(self.0));
    }
}
