//! A task that ends with its owner.

use std::future::Future;

use tokio::task::{AbortHandle, JoinHandle};

/// Aborts a task when dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(AbortHandle);

impl AbortOnDrop {
    /// Spawns a task on the current arbiter.
    pub(crate) fn spawn(task: impl Future<Output = ()> + 'static) -> Self {
        actix_rt::spawn(task).into()
    }
}

impl From<JoinHandle<()>> for AbortOnDrop {
    fn from(task: JoinHandle<()>) -> Self {
        Self(task.abort_handle())
    }
}

/// For a task whose result is awaited elsewhere.
impl From<AbortHandle> for AbortOnDrop {
    fn from(task: AbortHandle) -> Self {
        Self(task)
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
