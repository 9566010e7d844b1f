//! A guard that binds a task to its owner.

use std::future::Future;

use tokio::task::JoinHandle;

/// Aborts a task when dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(Option<JoinHandle<()>>);

impl AbortOnDrop {
    /// Spawns a task on the current arbiter.
    pub(crate) fn spawn(task: impl Future<Output = ()> + 'static) -> Self {
        Self(Some(actix_rt::spawn(task)))
    }

    /// Returns whether the task has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Lets the task run to its end. The returned future resolves then; dropping it does not abort the task.
    pub(crate) fn finish(mut self) -> impl Future<Output = ()> + 'static {
        let task = self.0.take();
        async move {
            if let Some(task) = task {
                // An error means that the task panicked, which ends it, too.
                let _ = task.await;
            }
        }
    }
}

impl From<JoinHandle<()>> for AbortOnDrop {
    fn from(task: JoinHandle<()>) -> Self {
        Self(Some(task))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}
