//! Where the actors live: on a thread of their own, or on the arbiter the client was made on.
//!
//! A thread of their own is the default. An application that blocks its thread then loses no lease and no watch, and
//! the client works the same from actix, from any tokio runtime and from several threads at once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    thread,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::error::{Error, ErrorKind, Outcome};

/// How long the end of the thread is waited for.
const LAST_WORK: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// Runs closures on the thread of the actors; ends it when asked or dropped.
pub(crate) struct Runtime {
    jobs: mpsc::UnboundedSender<Job>,
    thread: Mutex<Option<OwnThread>>,
}

struct OwnThread {
    handle: thread::JoinHandle<()>,
    ended: oneshot::Receiver<()>,
}

impl Runtime {
    /// A new thread with an actix system of its own.
    pub(crate) fn own_thread() -> Result<Self, Error> {
        let (jobs, queue) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel::<()>();
        let handle = thread::Builder::new()
            .name("actix-etcd".to_owned())
            .spawn(move || {
                let system = actix_rt::System::new();
                system.block_on(work(queue));
                drop(system);
                drop(end);
            })
            .map_err(|error| {
                Error::new(
                    ErrorKind::Internal,
                    Outcome::NotSent,
                    "cannot start the client's thread",
                )
                .with_source(error)
            })?;
        Ok(Self {
            jobs,
            thread: Mutex::new(Some(OwnThread { handle, ended })),
        })
    }

    /// The arbiter this is called on.
    pub(crate) fn current_arbiter() -> Result<Self, Error> {
        if actix_rt::Arbiter::try_current().is_none() {
            return Err(Error::invalid(
                "there is no actix arbiter on this thread: call it inside of an actix system, or \
                 leave the client on its own thread",
            ));
        }
        let (jobs, queue) = mpsc::unbounded_channel();
        actix_rt::spawn(work(queue));
        Ok(Self {
            jobs,
            thread: Mutex::new(None),
        })
    }

    /// Runs a closure on the actors' thread; `false` where it has ended.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.jobs.send(Box::new(job)).is_ok()
    }

    /// Runs a closure on the actors' thread and gives what it returned.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        self.run(move || {
            let _ = answer.send(job());
        });
        answered.await.map_err(|_| Error::shut_down())
    }

    /// Ends when the future has, without anybody waiting for it.
    pub(crate) fn finish(self, last: impl Future<Output = ()> + Send + 'static) {
        let alive = self.jobs.clone();
        self.run(move || {
            actix_rt::spawn(async move {
                last.await;
                drop(alive);
            });
        });
    }

    /// Ends the thread and waits for it.
    pub(crate) async fn join(self) {
        let own = self
            .thread
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        drop(self.jobs);
        if let Some(OwnThread { handle, ended }) = own {
            // A name that is being looked up cannot be interrupted: its thread ends by itself, later.
            if timeout(LAST_WORK, ended).await.is_ok() {
                // The thread has left its closure: this returns at once.
                let _ = handle.join();
            }
        }
    }
}

async fn work(mut queue: mpsc::UnboundedReceiver<Job>) {
    while let Some(job) = queue.recv().await {
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a job on the client's thread panicked");
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

    /// Says when the thread that holds it has destroyed what was its own.
    struct LastWord(Arc<AtomicBool>);

    impl Drop for LastWord {
        fn drop(&mut self) {
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.0.store(true, Ordering::SeqCst);
        }
    }

    thread_local! {
        static LAST_WORD: RefCell<Option<LastWord>> = const { RefCell::new(None) };
    }

    #[tokio::test]
    async fn joining_does_not_wait_for_work_that_cannot_be_interrupted() {
        let runtime = Runtime::own_thread().unwrap();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let stuck = move || drop(tokio::task::spawn_blocking(move || wait.recv()));
        runtime.call(stuck).await.unwrap();
        runtime.join().await;
        drop(done);
    }

    #[tokio::test]
    async fn joining_waits_for_the_end_of_the_thread() {
        let ended = Arc::new(AtomicBool::new(false));
        let runtime = Runtime::own_thread().unwrap();
        let last_word = LastWord(ended.clone());
        runtime
            .call(|| LAST_WORD.set(Some(last_word)))
            .await
            .unwrap();
        assert!(!ended.load(Ordering::SeqCst));
        runtime.join().await;
        assert!(ended.load(Ordering::SeqCst));
    }
}
