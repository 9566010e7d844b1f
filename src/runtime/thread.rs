//! The thread of the actors: a separate thread of the client, or the arbiter that created the client.
//!
//! The default is a separate thread. An application that blocks its threads then loses no lease and no watch, and the
//! client works the same from actix, from any tokio runtime and from several threads at once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::delivery::{deliveries_finished, has_unfinished_deliveries};
use crate::error::{Error, ErrorKind, Outcome};

/// Longest wait for the end of the thread.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// Runs closures on the actors' thread. Dropping it ends a separate thread.
pub(crate) struct Runtime {
    jobs: mpsc::UnboundedSender<Job>,
    /// `None` on an arbiter.
    thread: Option<OwnThread>,
}

struct OwnThread {
    handle: Mutex<Option<thread::JoinHandle<()>>>,
    /// Closed when the thread has left its closure.
    running: watch::Receiver<ThreadState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    Running,
    /// The client was shut down, but slow actors have not received their last items yet. The thread ends after that.
    Delivering,
}

/// The end of a [`Runtime`], which any number of tasks can wait for.
pub(crate) struct RuntimeEnd {
    /// Closed when the last future has finished or was dropped.
    last: watch::Receiver<()>,
    thread: Option<OwnThread>,
}

impl Runtime {
    /// Starts a thread with its own actix system.
    pub(crate) fn own_thread() -> Result<Self, Error> {
        let (jobs, queue) = mpsc::unbounded_channel();
        let (end, running) = watch::channel(ThreadState::Running);
        let handle = thread::Builder::new()
            .name("actix-etcd".to_owned())
            .spawn(move || {
                let system = actix_rt::System::new();
                system.block_on(async {
                    run_jobs(queue).await;
                    if has_unfinished_deliveries() {
                        let _ = end.send(ThreadState::Delivering);
                        deliveries_finished().await;
                    }
                });
                drop(system);
                drop(end);
            })
            .map_err(|error| {
                Error::new(
                    ErrorKind::Internal,
                    Outcome::NotSent,
                    "the client's thread could not be started",
                )
                .with_source(error)
            })?;
        Ok(Self {
            jobs,
            thread: Some(OwnThread {
                handle: Mutex::new(Some(handle)),
                running,
            }),
        })
    }

    /// Uses the arbiter of the calling thread.
    pub(crate) fn current_arbiter() -> Result<Self, Error> {
        if actix_rt::Arbiter::try_current().is_none() {
            return Err(Error::invalid(
                "this thread has no actix arbiter; create the client inside an actix system, or \
                 omit `on_current_arbiter`",
            ));
        }
        let (jobs, queue) = mpsc::unbounded_channel();
        actix_rt::spawn(run_jobs(queue));
        Ok(Self { jobs, thread: None })
    }

    /// Runs a closure on the actors' thread. Returns `false` if the thread has ended.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.jobs.send(Box::new(job)).is_ok()
    }

    /// Runs a closure on the actors' thread and returns its result. Fails if the thread has ended.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, result) = oneshot::channel();
        self.run(move || {
            let _ = sender.send(job());
        });
        result.await.map_err(|_| Error::shut_down())
    }

    /// Runs a future on the actors' thread and ends the thread afterwards. Returns at once; the future runs to its end
    /// even if nothing waits for it.
    pub(crate) fn finish(self, last: impl Future<Output = ()> + Send + 'static) -> RuntimeEnd {
        let keep_running = self.jobs.clone();
        let (end, last_running) = watch::channel(());
        self.run(move || {
            actix_rt::spawn(async move {
                last.await;
                drop((keep_running, end));
            });
        });
        RuntimeEnd {
            last: last_running,
            thread: self.thread,
        }
    }
}

impl RuntimeEnd {
    /// Waits until the last future has finished and a separate thread has ended, or has only items left to deliver.
    pub(crate) async fn wait(&self) {
        closed(&self.last).await;
        let Some(OwnThread { handle, running }) = &self.thread else {
            return;
        };
        let mut running = running.clone();
        let delivering = running.wait_for(|state| *state == ThreadState::Delivering);
        // A host name lookup cannot be interrupted, and actors may be slow; then the thread ends later, without a join.
        // An error means that the channel is closed.
        if let Ok(Err(_)) = timeout(JOIN_TIMEOUT, delivering).await {
            let handle = handle.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(handle) = handle {
                // The thread has left its closure, so the join returns at once.
                let _ = handle.join();
            }
        }
    }
}

/// Waits until the sender of a channel is dropped.
async fn closed(channel: &watch::Receiver<()>) {
    let mut channel = channel.clone();
    while channel.changed().await.is_ok() {}
}

async fn run_jobs(mut queue: mpsc::UnboundedReceiver<Job>) {
    while let Some(job) = queue.recv().await {
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("job on the client's thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use super::Runtime;

    /// Sets a flag when it is dropped, shortly after the thread left its closure.
    struct ThreadLocalGuard(Arc<AtomicBool>);

    impl Drop for ThreadLocalGuard {
        fn drop(&mut self) {
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.0.store(true, Ordering::SeqCst);
        }
    }

    thread_local! {
        static GUARD: RefCell<Option<ThreadLocalGuard>> = const { RefCell::new(None) };
    }

    #[tokio::test]
    async fn end_does_not_wait_for_blocking_work() {
        let runtime = Runtime::own_thread().unwrap();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let block = move || drop(tokio::task::spawn_blocking(move || blocked.recv()));
        runtime.call(block).await.unwrap();
        runtime.finish(async {}).wait().await;
        drop(release);
    }

    #[tokio::test]
    async fn end_waits_for_thread_local_destructors() {
        let ended = Arc::new(AtomicBool::new(false));
        let runtime = Runtime::own_thread().unwrap();
        let guard = ThreadLocalGuard(ended.clone());
        runtime.call(|| GUARD.set(Some(guard))).await.unwrap();
        assert!(!ended.load(Ordering::SeqCst));
        runtime.finish(async {}).wait().await;
        assert!(ended.load(Ordering::SeqCst));
    }
}
