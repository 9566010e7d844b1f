//! All interleavings of the threads that poll a shared connection, tried by loom: no wake is lost.
//!
//! The sources of the lock, the wakes and the poll are compiled with loom's types. The connection is a queue: callers add
//! requests, and whoever polls handles them. A lost wake leaves a request in the queue, its driver waits forever, and loom
//! reports a deadlock.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "the model does not use all methods, and a test fails by panicking"
)]

#[path = "../src/transport/shared_connection/driver_wakes.rs"]
mod driver_wakes;
#[path = "../src/transport/shared_connection/poll_lock.rs"]
mod poll_lock;
#[path = "../src/transport/shared_connection/shared_poll.rs"]
mod shared_poll;

/// The synchronization types of the sources, from loom.
mod sync {
    use std::task::Waker;

    pub(crate) use loom::{
        sync::{
            Mutex, MutexGuard,
            atomic::{AtomicBool, Ordering, fence},
        },
        thread_local,
    };

    /// loom's waker with the methods of the crate `atomic_waker`.
    pub(crate) struct AtomicWaker(loom::future::AtomicWaker);

    impl AtomicWaker {
        pub(crate) fn new() -> Self {
            Self(loom::future::AtomicWaker::new())
        }

        pub(crate) fn register(&self, waker: &Waker) {
            self.0.register_by_ref(waker);
        }

        pub(crate) fn wake(&self) {
            self.0.wake();
        }
    }
}

use std::{
    future::poll_fn,
    task::{Context, Poll, Waker},
};

use driver_wakes::DrivenBy;
use loom::{
    future::block_on,
    model::Builder,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};
use shared_poll::{HandOver, SharedPoll};

/// The requests that h2 holds, behind its own lock.
#[derive(Default)]
struct Queue {
    queued: usize,
    /// The waker of the last poll, taken by the first request after it.
    poller: Option<Waker>,
}

/// A connection that ends when it has handled a number of requests.
struct Model {
    queue: Mutex<Queue>,
    shared: SharedPoll<usize>,
    requests: usize,
    has_ended: AtomicBool,
    /// Lets loom change threads between the end of a poll and the unlock.
    polls: AtomicUsize,
}

impl Model {
    fn new(requests: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Queue::default()),
            shared: SharedPoll::new(0),
            requests,
            has_ended: AtomicBool::new(false),
            polls: AtomicUsize::new(0),
        })
    }

    /// Queues a request and polls in place of the driver.
    fn send_directly(&self) {
        self.shared.poll_after(
            || self.queue_request(),
            |handled, cx| self.poll(handled, cx),
        );
    }

    fn queue_request(&self) {
        let mut queue = self.queue.lock().unwrap();
        queue.queued += 1;
        if let Some(poller) = queue.poller.take() {
            poller.wake();
        }
    }

    fn poll(&self, handled: &mut usize, cx: &mut Context<'_>) {
        let mut queue = self.queue.lock().unwrap();
        *handled += std::mem::take(&mut queue.queued);
        queue.poller = Some(cx.waker().clone());
        drop(queue);
        self.polls.fetch_add(1, Ordering::SeqCst);
        if *handled == self.requests {
            self.has_ended.store(true, Ordering::SeqCst);
            self.shared.wake(DrivenBy::Client);
            self.shared.wake(DrivenBy::Callers);
        }
    }

    /// Drives until all requests are handled.
    fn drive(&self, driver: DrivenBy) {
        block_on(poll_fn(|cx| self.poll_driver(driver, cx)));
    }

    fn poll_driver(&self, driver: DrivenBy, cx: &mut Context<'_>) -> Poll<()> {
        let poll = |handled: &mut usize, cx: &mut Context<'_>| self.poll(handled, cx);
        self.shared.poll_as(driver, cx.waker(), poll);
        self.end()
    }

    /// Makes a driver drive. It polls again only when it is woken.
    fn hand_over_and_drive(&self, driver: DrivenBy) {
        let mut has_begun = false;
        block_on(poll_fn(|cx| {
            if has_begun {
                return self.poll_driver(driver, cx);
            }
            has_begun = true;
            self.hand_over(driver, cx.waker());
            self.end()
        }));
    }

    /// Makes a driver drive, as soon as no other thread polls.
    fn hand_over(&self, to: DrivenBy, waker: &Waker) {
        loop {
            let poll = |handled: &mut usize, cx: &mut Context<'_>| self.poll(handled, cx);
            match self.shared.hand_over(to, waker, |_| Some(()), poll) {
                HandOver::Busy => thread::yield_now(),
                HandOver::Done(()) | HandOver::Refused => return,
            }
        }
    }

    fn end(&self) -> Poll<()> {
        if self.has_ended.load(Ordering::SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Tries all interleavings with up to this number of preemptions.
fn check(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(scenario);
}

#[test]
fn request_queued_during_poll_is_handled() {
    check(3, || {
        let model = Model::new(2);
        let caller = {
            let model = model.clone();
            thread::spawn(move || {
                model.queue_request();
                model.queue_request();
            })
        };
        model.drive(DrivenBy::Client);
        caller.join().unwrap();
    });
}

#[test]
fn direct_polls_of_two_callers_lose_no_wake() {
    check(2, || {
        let model = Model::new(2);
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let model = model.clone();
                thread::spawn(move || model.send_directly())
            })
            .collect();
        model.drive(DrivenBy::Client);
        for caller in callers {
            caller.join().unwrap();
        }
    });
}

#[test]
fn hand_over_during_call_loses_no_wake() {
    check(2, || {
        let model = Model::new(1);
        let caller = {
            let model = model.clone();
            thread::spawn(move || model.send_directly())
        };
        let driver = {
            let model = model.clone();
            thread::spawn(move || model.hand_over_and_drive(DrivenBy::Callers))
        };
        model.drive(DrivenBy::Client);
        caller.join().unwrap();
        driver.join().unwrap();
    });
}

#[test]
fn return_to_client_during_call_loses_no_wake() {
    check(2, || {
        let model = Model::new(1);
        model.hand_over(DrivenBy::Callers, Waker::noop());
        let caller = {
            let model = model.clone();
            thread::spawn(move || model.queue_request())
        };
        model.hand_over_and_drive(DrivenBy::Client);
        caller.join().unwrap();
    });
}
