//! The runtime of the testbed.
//!
//! Tests block their thread, pause their clock and count their tasks. That must not affect the proxies, so the testbed
//! has a separate runtime with two threads, which is never shut down.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinError, JoinHandle};

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("testbed")
            .enable_all()
            .build()
            .expect("start the testbed's runtime")
    })
}

/// Spawns a task on the testbed's runtime.
pub(crate) fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    runtime().spawn(task)
}

/// Runs a task on the testbed's runtime and waits for it from any runtime. Panics if the task does.
pub(crate) async fn run<F>(task: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    match AbortOnDrop(spawn(task)).join().await {
        Ok(output) => output,
        Err(error) => repeat_panic(error),
    }
}

/// Panics like the task. The message of the task is in the output of the test that started the runtime, where it is lost
/// if that test passes. So the message is repeated in the output of this test.
pub(crate) fn repeat_panic(error: JoinError) -> ! {
    let payload = error.into_panic();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    match text.or_else(|| payload.downcast_ref::<&str>().copied()) {
        Some(message) => panic!("{message}"),
        None => std::panic::resume_unwind(payload),
    }
}

/// Enters the runtime, to create sockets outside of a task.
pub(crate) fn enter() -> tokio::runtime::EnterGuard<'static> {
    runtime().enter()
}

/// Aborts the task if the caller stops waiting, such as after a timeout.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    async fn join(mut self) -> Result<T, JoinError> {
        (&mut self.0).await
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
