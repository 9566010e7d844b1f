//! A guard that binds a task to its owner.

use std::future::Future;

use tokio::task::JoinHandle;

/// Aborts a task when dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    /// Spawns a task on the current arbiter.
    pub(crate) fn spawn(task: impl Future<Output = ()> + 'static) -> Self {
        Self(actix_rt::spawn(task))
    }
}

impl From<JoinHandle<()>> for AbortOnDrop {
    fn from(task: JoinHandle<()>) -> Self {
        Self(task)
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
