//! An actor that stops before its time is over.
//!
//! The remaining time is checked before every poll of the actor, not only by a timer: a process that continues after a
//! pause has many timers and messages due at once, in any order. The check makes the actor stop before any of them.

use std::{
    pin::Pin,
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, dev::ContextFut};
use tokio::sync::{oneshot, watch};

pub(super) struct TimeLimitedActor<A: Actor> {
    pub(super) addr: Addr<A>,
    stop: Option<oneshot::Sender<()>>,
    ended: watch::Receiver<()>,
}

impl<A: Actor<Context = Context<A>>> TimeLimitedActor<A> {
    /// Starts the actor on the current arbiter. It is stopped as soon as no more than `margin` remains, at the latest
    /// before its next poll.
    pub(super) fn start(
        actor: A,
        margin: Duration,
        remaining: impl Fn() -> Duration + Unpin + 'static,
    ) -> Self {
        let (stop, stop_requested) = oneshot::channel();
        let (alive, ended) = watch::channel(());
        let context = Context::new();
        let addr = context.address();
        actix_rt::spawn(TimeLimitedRun {
            stage: ActorStage::NotStarted(context, actor),
            stopped_once: false,
            stop_requested: Some(stop_requested),
            margin,
            remaining,
            _alive: alive,
        });
        Self {
            addr,
            stop: Some(stop),
            ended,
        }
    }

    /// Requests the actor to stop.
    pub(super) fn stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until the actor has ended.
    pub(super) async fn ended(&mut self) {
        // The sender never sends; it is dropped after the actor.
        let _ = self.ended.changed().await;
    }
}

enum ActorStage<A: Actor<Context = Context<A>>> {
    /// Kept apart, because dropping a context future that was never polled would start its actor.
    NotStarted(Context<A>, A),
    Started(ContextFut<A, Context<A>>),
    Ended,
}

struct TimeLimitedRun<A: Actor<Context = Context<A>>, R> {
    stage: ActorStage<A>,
    /// Whether the actor was already stopped, which it may refuse.
    stopped_once: bool,
    /// `None` once a stop was requested.
    stop_requested: Option<oneshot::Receiver<()>>,
    margin: Duration,
    remaining: R,
    /// Dropped after the actor.
    _alive: watch::Sender<()>,
}

impl<A, R> TimeLimitedRun<A, R>
where
    A: Actor<Context = Context<A>>,
    R: Fn() -> Duration,
{
    /// Returns whether to stop the actor before its next poll. An actor that refuses to stop is stopped again only when
    /// no time remains.
    fn must_stop(&mut self, cx: &mut TaskContext<'_>) -> bool {
        let requested = |stop: &mut oneshot::Receiver<()>| Pin::new(stop).poll(cx).is_ready();
        if self.stop_requested.as_mut().is_some_and(requested) {
            self.stop_requested = None;
        }
        let remaining = (self.remaining)();
        let due = self.stop_requested.is_none() || remaining <= self.margin;
        let first_stop = due && !self.stopped_once;
        self.stopped_once |= due;
        first_stop || remaining.is_zero()
    }
}

impl<A, R> Future for TimeLimitedRun<A, R>
where
    A: Actor<Context = Context<A>>,
    R: Fn() -> Duration + Unpin,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        let stop = this.must_stop(cx);
        if let ActorStage::NotStarted(..) = this.stage
            && let ActorStage::NotStarted(context, actor) =
                std::mem::replace(&mut this.stage, ActorStage::Ended)
            && !stop
        {
            this.stage = ActorStage::Started(context.into_future(actor));
        }
        match &mut this.stage {
            ActorStage::Started(actor) => {
                if stop {
                    actor.ctx().stop();
                }
                Pin::new(actor).poll(cx)
            }
            ActorStage::NotStarted(..) | ActorStage::Ended => Poll::Ready(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use actix::{Handler, Message, Running};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[derive(Default)]
    struct Counts {
        started: Cell<u32>,
        handled: Cell<u32>,
        stopping: Cell<u32>,
    }

    struct CountingActor {
        counts: Rc<Counts>,
        refusals: u32,
    }

    fn increment(count: &Cell<u32>) {
        count.set(count.get() + 1);
    }

    impl Actor for CountingActor {
        type Context = Context<Self>;

        fn started(&mut self, _: &mut Self::Context) {
            increment(&self.counts.started);
        }

        fn stopping(&mut self, _: &mut Self::Context) -> Running {
            increment(&self.counts.stopping);
            if self.refusals == 0 {
                return Running::Stop;
            }
            self.refusals -= 1;
            Running::Continue
        }
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    struct Work;

    impl Handler<Work> for CountingActor {
        type Result = ();

        fn handle(&mut self, _: Work, _: &mut Self::Context) {
            increment(&self.counts.handled);
        }
    }

    /// Starts an actor. Returns it with its remaining time and the counts of its calls.
    fn start(
        refusals: u32,
    ) -> (
        TimeLimitedActor<CountingActor>,
        Rc<Cell<Duration>>,
        Rc<Counts>,
    ) {
        let counts = Rc::new(Counts::default());
        let remaining = Rc::new(Cell::new(LONG));
        let actor = CountingActor {
            counts: counts.clone(),
            refusals,
        };
        let limit = remaining.clone();
        let actor = TimeLimitedActor::start(actor, LONG / 2, move || limit.get());
        (actor, remaining, counts)
    }

    #[actix::test]
    async fn queued_message_is_dropped_after_time_limit() {
        let (mut actor, remaining, counts) = start(0);
        actor.addr.send(Work).await.unwrap();
        remaining.set(Duration::ZERO);
        let late = actor.addr.send(Work).await;
        assert!(late.is_err());
        actor.ended().await;
        assert_eq!((counts.handled.get(), counts.stopping.get()), (1, 1));
    }

    #[actix::test]
    async fn actor_without_time_is_never_started() {
        let (mut actor, remaining, counts) = start(0);
        remaining.set(Duration::ZERO);
        actor.ended().await;
        assert_eq!((counts.started.get(), counts.handled.get()), (0, 0));
    }

    #[actix::test]
    async fn refusing_actor_is_stopped_again_at_time_limit() {
        let (mut actor, remaining, counts) = start(1);
        actor.addr.send(Work).await.unwrap();
        remaining.set(LONG / 3);
        for _ in 0..3 {
            actor.addr.send(Work).await.unwrap();
        }
        assert_eq!((counts.handled.get(), counts.stopping.get()), (4, 1));
        remaining.set(Duration::ZERO);
        assert!(actor.addr.send(Work).await.is_err());
        actor.ended().await;
        assert_eq!((counts.handled.get(), counts.stopping.get()), (4, 2));
    }

    #[actix::test]
    async fn stop_request_ends_actor() {
        let (mut actor, _remaining, counts) = start(0);
        actor.addr.send(Work).await.unwrap();
        actor.stop();
        actor.ended().await;
        assert_eq!((counts.handled.get(), counts.stopping.get()), (1, 1));
    }
}
