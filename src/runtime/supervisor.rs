//! Keeps an actor alive through its own panics.
//!
//! actix's supervisor restarts an actor that stopped itself; a panic ends the actor and the supervisor alike. Here it
//! is the other way round: an actor that stops has done its work and ends, an actor that panics is caught,
//! counted, and started again after a pause with its state and its mailbox. Only the message that made it panic is lost.

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

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After that long without a panic the next pause is the shortest again.
const CALM: Duration = Duration::from_secs(10);

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// How many supervised actors there are in this process.
pub(crate) fn live_actors() -> usize {
    LIVE.load(Ordering::SeqCst)
}

/// Told to the parent of an actor that panicked.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(crate) struct ActorFailed {
    /// The kind of actor.
    pub(crate) actor: &'static str,
    /// What it panicked with.
    pub(crate) reason: String,
    /// How often in a row.
    pub(crate) failures: u32,
}

/// Makes an actor panic. For tests of what its crash costs.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct Crash;

/// Gives an actor its handler of [`Crash`].
macro_rules! crashes {
    ($actor:ty) => {
        impl actix::Handler<$crate::runtime::supervisor::Crash> for $actor {
            type Result = ();

            #[allow(clippy::panic, reason = "the message exists to cause one")]
            fn handle(&mut self, _: $crate::runtime::supervisor::Crash, _: &mut Self::Context) {
                panic!("asked to crash");
            }
        }
    };
}
pub(crate) use crashes;

/// Starts an actor on the current arbiter and keeps it alive until it stops itself or nobody has its address.
pub(crate) fn supervise<A, P>(
    actor: &'static str,
    on_failure: P,
    create: impl FnOnce(&mut Context<A>) -> A,
) -> Addr<A>
where
    A: Supervised + Actor<Context = Context<A>>,
    P: FnMut(ActorFailed) + 'static,
{
    let mut context = Context::new();
    let state = create(&mut context);
    let address = context.address();
    LIVE.fetch_add(1, Ordering::SeqCst);
    actix_rt::spawn(Supervisor {
        actor,
        life: context.into_future(state),
        on_failure,
        pause: None,
        failures: 0,
        last_failure: Instant::now(),
    });
    address
}

struct Supervisor<A, P>
where
    A: Supervised + Actor<Context = Context<A>>,
{
    actor: &'static str,
    life: ContextFut<A, Context<A>>,
    on_failure: P,
    pause: Option<Pin<Box<Sleep>>>,
    failures: u32,
    last_failure: Instant,
}

impl<A, P> Supervisor<A, P>
where
    A: Supervised + Actor<Context = Context<A>>,
    P: FnMut(ActorFailed) + 'static,
{
    fn failed(&mut self, panic: &(dyn Any + Send)) {
        let now = Instant::now();
        if now.duration_since(self.last_failure) > CALM {
            self.failures = 0;
        }
        self.last_failure = now;
        self.pause = Some(Box::pin(sleep(pause(self.failures))));
        self.failures += 1;
        let reason = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without words".to_owned());
        tracing::error!(
            actor = self.actor,
            failures = self.failures,
            reason,
            "actor panicked; it is started again"
        );
        (self.on_failure)(ActorFailed {
            actor: self.actor,
            reason,
            failures: self.failures,
        });
    }
}

impl<A, P> Unpin for Supervisor<A, P> where A: Supervised + Actor<Context = Context<A>> {}

impl<A, P> Future for Supervisor<A, P>
where
    A: Supervised + Actor<Context = Context<A>>,
    P: FnMut(ActorFailed) + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(cx));
                this.pause = None;
                match catch_unwind(AssertUnwindSafe(|| this.life.restart())) {
                    Ok(true) => {}
                    Ok(false) => return Poll::Ready(()),
                    Err(panic) => {
                        this.failed(&*panic);
                        continue;
                    }
                }
            }
            match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut this.life).poll(cx))) {
                Ok(polled) => return polled,
                Err(panic) => this.failed(&*panic),
            }
        }
    }
}

impl<A, P> Drop for Supervisor<A, P>
where
    A: Supervised + Actor<Context = Context<A>>,
{
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

fn pause(failures: u32) -> Duration {
    FIRST_PAUSE
        .saturating_mul(2u32.saturating_pow(failures))
        .min(LONGEST_PAUSE)
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
    fn pauses_grow_and_are_bounded() {
        assert_eq!(pause(0), FIRST_PAUSE);
        assert_eq!(pause(1), FIRST_PAUSE * 2);
        assert_eq!(pause(63), LONGEST_PAUSE);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    #[actix::test]
    async fn a_panic_costs_one_message_and_neither_state_nor_mailbox() {
        tokio::time::pause();
        let told = Rc::new(RefCell::new(Vec::new()));
        let seen = told.clone();
        let addr = supervise(
            "counter",
            move |failed| seen.borrow_mut().push(failed),
            |_| Counter(0),
        );
        assert_eq!(addr.send(Add(2)).await.unwrap(), 2);
        let crashed = addr.send(Crash);
        let queued = addr.send(Add(3));
        assert!(crashed.await.is_err());
        assert_eq!(queued.await.unwrap(), 5);
        let told = told.borrow();
        assert_eq!(
            (told.len(), told[0].failures, told[0].reason.as_str()),
            (1, 1, "asked to crash")
        );
    }

    #[actix::test]
    async fn repeated_panics_are_counted_and_survived() {
        tokio::time::pause();
        let addr = supervise("counter", |_| {}, |_| Counter(7));
        for _ in 0..20 {
            addr.do_send(Crash);
        }
        assert_eq!(addr.send(Add(0)).await.unwrap(), 7);
    }

    #[actix::test]
    async fn an_actor_without_addresses_ends() {
        let addr = supervise("counter", |_| {}, |_| Counter(0));
        let weak = addr.downgrade();
        addr.do_send(Crash);
        drop(addr);
        while weak.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    }
}
