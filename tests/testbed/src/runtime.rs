//! Where the testbed itself runs.
//!
//! Tests block their thread, pause their clock and count their tasks; proxies must not notice. So everything here
//! runs on two threads of its own, that live as long as the process.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("testbed")
            .enable_all()
            .build()
            .expect("the testbed's own runtime starts")
    })
}

/// Starts a task on the testbed's own threads.
pub(crate) fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    runtime().spawn(task)
}

/// Runs a task on the testbed's own threads and waits for it there, whatever runtime the caller is on.
/// A panic of the task becomes the caller's.
pub(crate) async fn run<F>(task: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    match AbortOnDrop(spawn(task)).join().await {
        Ok(output) => output,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

/// Makes the runtime current, for sockets that are created outside of a task.
pub(crate) fn enter() -> tokio::runtime::EnterGuard<'static> {
    runtime().enter()
}

/// A caller that gives up (a time-out around it) must not leave the work behind.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    async fn join(mut self) -> Result<T, tokio::task::JoinError> {
        (&mut self.0).await
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
