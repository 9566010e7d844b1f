//! Restarts actors that panic.
//!
//! actix's supervisor restarts an actor that stopped, but does not survive a panic. This supervisor does the
//! opposite: an actor that stops has ended, and an actor that panics is restarted after a backoff, with its state and
//! mailbox. Only the message that caused the panic is lost.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context as TaskContext, Poll, ready},
    time::Duration,
};

use actix::{Actor, Addr, AsyncContext, Context, Message, Supervised, dev::ContextFut};
use tokio::time::{Instant, Sleep, sleep};

use super::backoff::{Backoff, BackoffTimer};

const RESTART_BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
/// Time without a panic after which the backoff is reset.
const BACKOFF_RESET: Duration = Duration::from_secs(10);

static LIVE_ACTORS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of supervised actors in this process.
#[cfg(feature = "test-faults")]
pub(crate) fn live_actors() -> usize {
    LIVE_ACTORS.load(Ordering::SeqCst)
}

/// An actor panicked. Sent to its parent.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(crate) struct ActorFailed {
    /// Name given to [`supervise`].
    pub(crate) actor: &'static str,
    /// Panic message.
    pub(crate) reason: String,
    /// Number of panics since the backoff was last reset.
    pub(crate) failures: u32,
}

/// Makes an actor panic, for tests of supervision.
#[cfg(any(test, feature = "test-faults"))]
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct Crash;

/// Implements the handler of `Crash` for an actor. Expands to nothing in builds without the message.
#[cfg(any(test, feature = "test-faults"))]
macro_rules! crashes {
    ($actor:ty) => {
        impl actix::Handler<$crate::runtime::supervisor::Crash> for $actor {
            type Result = ();

            #[allow(clippy::panic, reason = "the message exists to cause a panic")]
            fn handle(&mut self, _: $crate::runtime::supervisor::Crash, _: &mut Self::Context) {
                panic!("crash requested by a test");
            }
        }
    };
}
#[cfg(not(any(test, feature = "test-faults")))]
macro_rules! crashes {
    ($actor:ty) => {};
}
pub(crate) use crashes;

/// Starts an actor on the current arbiter and restarts it when it panics, until it stops itself or all its addresses
/// are dropped. Calls `on_failure` after each panic.
pub(crate) fn supervise<A, F>(
    name: &'static str,
    on_failure: F,
    create: impl FnOnce(&mut Context<A>) -> A,
) -> Addr<A>
where
    A: Supervised + Actor<Context = Context<A>>,
    F: FnMut(ActorFailed) + 'static,
{
    let mut context = Context::new();
    let actor = create(&mut context);
    let address = context.address();
    LIVE_ACTORS.fetch_add(1, Ordering::SeqCst);
    actix_rt::spawn(Supervisor {
        name,
        actor: context.into_future(actor),
        on_failure,
        failures: None,
    });
    address
}

struct Supervisor<A, F>
where
    A: Supervised + Actor<Context = Context<A>>,
{
    name: &'static str,
    actor: ContextFut<A, Context<A>>,
    on_failure: F,
    /// `None` until the first panic. Boxed, because there are as many supervisors as watches and leases.
    failures: Option<Box<FailureRecord>>,
}

/// The panics of an actor.
struct FailureRecord {
    backoff: BackoffTimer,
    last: Instant,
    /// Delay before the restart; `None` once the actor runs again.
    restart_delay: Option<Pin<Box<Sleep>>>,
}

impl<A, F> Supervisor<A, F>
where
    A: Supervised + Actor<Context = Context<A>>,
    F: FnMut(ActorFailed) + 'static,
{
    fn schedule_restart(&mut self, panic: &(dyn Any + Send)) {
        let now = Instant::now();
        let record = self.failures.get_or_insert_with(|| {
            Box::new(FailureRecord {
                backoff: RESTART_BACKOFF.start(),
                last: now,
                restart_delay: None,
            })
        });
        if now.duration_since(record.last) > BACKOFF_RESET {
            record.backoff.reset();
        }
        record.last = now;
        // 0.5 has no effect: the schedule has no jitter.
        let delay = record.backoff.next_delay(0.5);
        record.restart_delay = Some(Box::pin(sleep(delay)));
        let failures = record.backoff.failures();
        let reason = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "panic without a message".to_owned());
        tracing::error!(
            actor = self.name,
            failures,
            reason,
            "actor panicked; restart scheduled"
        );
        (self.on_failure)(ActorFailed {
            actor: self.name,
            reason,
            failures,
        });
    }
}

impl<A, F> Unpin for Supervisor<A, F> where A: Supervised + Actor<Context = Context<A>> {}

impl<A, F> Future for Supervisor<A, F>
where
    A: Supervised + Actor<Context = Context<A>>,
    F: FnMut(ActorFailed) + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            if let Some(record) = &mut this.failures
                && let Some(delay) = &mut record.restart_delay
            {
                ready!(delay.as_mut().poll(cx));
                record.restart_delay = None;
                match catch_unwind(AssertUnwindSafe(|| this.actor.restart())) {
                    Ok(true) => {}
                    Ok(false) => return Poll::Ready(()),
                    Err(panic) => {
                        this.schedule_restart(&*panic);
                        continue;
                    }
                }
            }
            match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut this.actor).poll(cx))) {
                Ok(polled) => return polled,
                Err(panic) => this.schedule_restart(&*panic),
            }
        }
    }
}

impl<A, F> Drop for Supervisor<A, F>
where
    A: Supervised + Actor<Context = Context<A>>,
{
    fn drop(&mut self) {
        LIVE_ACTORS.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use actix::Handler;

    use super::*;

    struct Counter(u32);

    impl Actor for Counter {
        type Context = Context<Self>;
    }

    impl Supervised for Counter {}

    crashes!(Counter);

    #[derive(Message)]
    #[rtype(result = "u32")]
    struct Add(u32);

    impl Handler<Add> for Counter {
        type Result = u32;

        fn handle(&mut self, Add(n): Add, _: &mut Context<Self>) -> u32 {
            self.0 += n;
            self.0
        }
    }

    #[test]
    fn restart_delays_grow_up_to_a_second() {
        let delay = |failures| RESTART_BACKOFF.delay(failures, 0.5);
        assert_eq!(delay(0), Duration::from_millis(10));
        assert_eq!(delay(1), Duration::from_millis(20));
        assert_eq!(delay(63), Duration::from_secs(1));
        assert_eq!(delay(u32::MAX), Duration::from_secs(1));
    }

    #[actix::test]
    async fn panic_loses_one_message_but_no_state() {
        tokio::time::pause();
        let failures = Rc::new(RefCell::new(Vec::new()));
        let recorded = failures.clone();
        let addr = supervise(
            "counter",
            move |failed| recorded.borrow_mut().push(failed),
            |_| Counter(0),
        );
        assert_eq!(addr.send(Add(2)).await.unwrap(), 2);
        let crashed = addr.send(Crash);
        let queued = addr.send(Add(3));
        assert!(crashed.await.is_err());
        assert_eq!(queued.await.unwrap(), 5);
        let failures = failures.borrow();
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].failures, 1);
        assert_eq!(failures[0].reason, "crash requested by a test");
    }

    #[actix::test]
    async fn actor_survives_repeated_panics() {
        tokio::time::pause();
        let addr = supervise("counter", |_| {}, |_| Counter(7));
        for _ in 0..20 {
            addr.do_send(Crash);
        }
        assert_eq!(addr.send(Add(0)).await.unwrap(), 7);
    }

    #[actix::test]
    async fn actor_without_addresses_ends() {
        let addr = supervise("counter", |_| {}, |_| Counter(0));
        let weak = addr.downgrade();
        addr.do_send(Crash);
        drop(addr);
        while weak.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    }
}
