//! A guard that aborts a task together with its owner.

use std::future::Future;

use tokio::task::{AbortHandle, JoinHandle};

/// Aborts a task when dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop {
    /// `None` once the task may run to its end.
    abort: Option<AbortHandle>,
    /// `None` if the result of the task is awaited elsewhere.
    task: Option<JoinHandle<()>>,
}

impl AbortOnDrop {
    /// Spawns a task on the current arbiter.
    pub(crate) fn spawn(task: impl Future<Output = ()> + 'static) -> Self {
        actix_rt::spawn(task).into()
    }

    /// Returns whether the task has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.abort.as_ref().is_none_or(AbortHandle::is_finished)
    }

    /// Lets the task run to its end. The returned future resolves when the task has ended; dropping the future does not
    /// abort the task.
    pub(crate) fn finish(mut self) -> impl Future<Output = ()> + 'static {
        self.abort = None;
        let task = self.task.take();
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
        Self {
            abort: Some(task.abort_handle()),
            task: Some(task),
        }
    }
}

/// For a task whose result is awaited elsewhere.
impl From<AbortHandle> for AbortOnDrop {
    fn from(abort: AbortHandle) -> Self {
        Self {
            abort: Some(abort),
            task: None,
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(abort) = &self.abort {
            abort.abort();
        }
    }
}
