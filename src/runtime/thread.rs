//! The thread of the actors: a separate thread of the client, or the arbiter that created the client.
//!
//! The default is a separate thread. An application that blocks its threads then loses no lease and no watch, and the
//! client works the same from actix, from any tokio runtime and from several threads at once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
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
    jobs: Arc<JobQueue>,
    /// `None` on an arbiter.
    thread: Option<Arc<OwnThread>>,
}

/// The sender of closures to the actors' thread. `None` once the thread accepts no more.
struct JobQueue(Mutex<Option<mpsc::UnboundedSender<Job>>>);

struct OwnThread {
    id: ThreadId,
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

/// The end of a [`Runtime`], which any number of tasks and threads can wait for.
pub(crate) struct RuntimeEnd {
    released: Arc<Released>,
    /// Closed when the last future has finished or was dropped.
    last: watch::Receiver<()>,
    thread: Option<Arc<OwnThread>>,
}

/// Whether the first of the two last futures has ended. A blocked thread can wait for it.
#[derive(Default)]
struct Released {
    is_set: Mutex<bool>,
    changed: Condvar,
}

/// Sets [`Released`] when dropped, also if its future is dropped.
struct SetReleased(Arc<Released>);

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
        let thread = OwnThread {
            id: handle.thread().id(),
            handle: Mutex::new(Some(handle)),
            running,
        };
        Ok(Self {
            jobs: JobQueue::new(jobs),
            thread: Some(Arc::new(thread)),
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
        Ok(Self {
            jobs: JobQueue::new(jobs),
            thread: None,
        })
    }

    /// Runs a closure on the actors' thread. Returns `false` if the thread has ended or is about to.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let rejected = self.jobs.send(Box::new(job));
        // Dropped without the lock: the values of the closure may call this function when they are dropped.
        rejected.is_none()
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

    /// Runs two futures on the actors' thread and ends the thread afterwards. The thread accepts closures until
    /// `release` has finished. Returns at once; the futures run to their end even if nothing waits for them.
    pub(crate) fn finish<R, C>(
        &self,
        release: impl FnOnce() -> R + Send + 'static,
        close: impl FnOnce() -> C + Send + 'static,
    ) -> RuntimeEnd
    where
        R: Future<Output = ()> + 'static,
        C: Future<Output = ()> + 'static,
    {
        let jobs = self.jobs.clone();
        let released = Arc::<Released>::default();
        let set_released = SetReleased(released.clone());
        let (end, last) = watch::channel(());
        self.run(move || {
            actix_rt::spawn(async move {
                release().await;
                // The thread runs until the sender is dropped.
                let keep_running = jobs.sender().take();
                drop(set_released);
                close().await;
                drop((keep_running, end));
            });
        });
        RuntimeEnd {
            released,
            last,
            thread: self.thread.clone(),
        }
    }
}

impl JobQueue {
    fn new(jobs: mpsc::UnboundedSender<Job>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(jobs))))
    }

    /// Returns the closure if the thread accepts no more.
    fn send(&self, job: Job) -> Option<Job> {
        match self.sender().as_ref() {
            Some(jobs) => jobs.send(job).err().map(|rejected| rejected.0),
            None => Some(job),
        }
    }

    fn sender(&self) -> MutexGuard<'_, Option<mpsc::UnboundedSender<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RuntimeEnd {
    /// Waits until the last future has finished and a separate thread has ended, or has only items left to deliver.
    pub(crate) async fn wait(&self) {
        closed(&self.last).await;
        let Some(thread) = &self.thread else {
            return;
        };
        let mut running = thread.running.clone();
        let delivering = running.wait_for(|state| *state == ThreadState::Delivering);
        // A host name lookup cannot be interrupted, and actors may be slow; then the thread ends later, without a join.
        // An error means that the channel is closed.
        if let Ok(Err(_)) = timeout(JOIN_TIMEOUT, delivering).await {
            let mut handle = thread.handle.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(handle) = handle.take() {
                // The thread has left its closure, so the join returns at once.
                let _ = handle.join();
            }
        }
    }

    /// Blocks the calling thread until the first of the last futures has ended, for at most `limit`. Does not block the
    /// actors' own thread, which runs that future, and never blocks if the actors run on an arbiter.
    pub(crate) fn block_until_released(&self, limit: Duration) {
        let is_separate = |thread: &Arc<OwnThread>| thread.id != thread::current().id();
        if !self.thread.as_ref().is_some_and(is_separate) {
            return;
        }
        let is_set = self.released.is_set.lock();
        let is_set = is_set.unwrap_or_else(PoisonError::into_inner);
        let pending = |is_set: &mut bool| !*is_set;
        // The time limit and a poisoned lock both end the wait.
        let _ = self
            .released
            .changed
            .wait_timeout_while(is_set, limit, pending);
    }
}

impl Drop for SetReleased {
    fn drop(&mut self) {
        let is_set = self.0.is_set.lock();
        *is_set.unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
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
        time::Duration,
    };

    use super::Runtime;

    /// Sets a flag when it is dropped, shortly after the thread left its closure.
    struct ThreadLocalGuard(Arc<AtomicBool>);

    impl Drop for ThreadLocalGuard {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(20));
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
        runtime.finish(async || {}, async || {}).wait().await;
        drop(release);
    }

    #[tokio::test]
    async fn end_waits_for_thread_local_destructors() {
        let ended = Arc::new(AtomicBool::new(false));
        let runtime = Runtime::own_thread().unwrap();
        let guard = ThreadLocalGuard(ended.clone());
        runtime.call(|| GUARD.set(Some(guard))).await.unwrap();
        assert!(!ended.load(Ordering::SeqCst));
        runtime.finish(async || {}, async || {}).wait().await;
        assert!(ended.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn blocking_wait_ends_with_release_or_limit() {
        let runtime = Runtime::own_thread().unwrap();
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let end = runtime.finish(async move || drop(released.await), async || {});
        end.block_until_released(Duration::from_millis(20));
        assert!(runtime.run(|| {}), "not released yet");
        drop(release);
        end.block_until_released(Duration::MAX);
        assert!(!runtime.run(|| {}));
        end.wait().await;
    }

    /// Uses the runtime when it is dropped, as a lock guard does.
    struct RunsWhenDropped {
        runtime: Arc<Runtime>,
        _dropped: tokio::sync::oneshot::Sender<()>,
    }

    impl Drop for RunsWhenDropped {
        fn drop(&mut self) {
            assert!(!self.runtime.run(|| {}), "the thread has ended");
        }
    }

    #[tokio::test]
    async fn rejected_closure_may_use_runtime_when_dropped() {
        let runtime = Arc::new(Runtime::own_thread().unwrap());
        runtime.finish(async || {}, async || {}).wait().await;
        let (sender, dropped) = tokio::sync::oneshot::channel();
        let rejected = RunsWhenDropped {
            runtime: runtime.clone(),
            _dropped: sender,
        };
        std::thread::spawn(move || runtime.run(move || drop(rejected)));
        let dropped = tokio::time::timeout(Duration::from_secs(30), dropped).await;
        assert!(dropped.is_ok(), "the drop of the closure is blocked");
    }

    #[tokio::test]
    async fn own_thread_is_never_blocked() {
        let runtime = Runtime::own_thread().unwrap();
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let end = Arc::new(runtime.finish(async move || drop(released.await), async || {}));
        let on_thread = end.clone();
        let waited = runtime.call(move || on_thread.block_until_released(Duration::MAX));
        waited.await.unwrap();
        drop(release);
        end.wait().await;
    }
}
