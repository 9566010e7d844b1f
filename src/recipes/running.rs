//! An actor that can be stopped from outside, whose end can be waited for, and that does nothing more once its time is
//! over.
//!
//! The time is looked at before every step of the actor, and not only when a timer says so: a process that was paused
//! for a while has all its timers and all its mail to catch up with when it goes on, in whatever order. So what the
//! actor does first after such a pause is to stop.

use std::{
    pin::Pin,
    task::{Context as Wake, Poll},
    time::Duration,
};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, dev::ContextFut};
use tokio::sync::{oneshot, watch};

pub(super) struct Running<A: Actor> {
    pub(super) addr: Addr<A>,
    stop: Option<oneshot::Sender<()>>,
    ended: watch::Receiver<()>,
}

impl<A: Actor<Context = Context<A>>> Running<A> {
    /// Starts it on this arbiter. It is stopped when it has no more than the margin left, at the latest before its next
    /// step.
    pub(super) fn start(
        actor: A,
        margin: Duration,
        remaining: impl Fn() -> Duration + Unpin + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (alive, ended) = watch::channel(());
        let context = Context::new();
        let addr = context.address();
        actix_rt::spawn(Life {
            actor: Stage::Made(context, actor),
            ordered: false,
            stopped: Some(stopped),
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

    /// Tells it to stop.
    pub(super) fn stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until it has ended.
    pub(super) async fn ended(&mut self) {
        // Never sent, only dropped.
        let _ = self.ended.changed().await;
    }
}

enum Stage<A: Actor<Context = Context<A>>> {
    /// To drop a context that was never polled would start its actor.
    Made(Context<A>, A),
    Started(ContextFut<A, Context<A>>),
    Over,
}

struct Life<A: Actor<Context = Context<A>>, R> {
    actor: Stage<A>,
    ordered: bool,
    stopped: Option<oneshot::Receiver<()>>,
    margin: Duration,
    remaining: R,
    /// Dropped after the actor.
    _alive: watch::Sender<()>,
}

impl<A, R> Life<A, R>
where
    A: Actor<Context = Context<A>>,
    R: Fn() -> Duration,
{
    /// Whether the actor is to stop before its next step. One that takes its time is told again only when there is
    /// none left.
    fn must_stop(&mut self, cx: &mut Wake<'_>) -> bool {
        let asked = |stopped: &mut oneshot::Receiver<()>| Pin::new(stopped).poll(cx).is_ready();
        if self.stopped.as_mut().is_some_and(asked) {
            self.stopped = None;
        }
        let remaining = (self.remaining)();
        let due = self.stopped.is_none() || remaining <= self.margin;
        let first = due && !self.ordered;
        self.ordered |= due;
        first || remaining.is_zero()
    }
}

impl<A, R> Future for Life<A, R>
where
    A: Actor<Context = Context<A>>,
    R: Fn() -> Duration + Unpin,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Wake<'_>) -> Poll<()> {
        let this = &mut *self;
        let stop = this.must_stop(cx);
        if let Stage::Made(..) = this.actor
            && let Stage::Made(context, actor) = std::mem::replace(&mut this.actor, Stage::Over)
            && !stop
        {
            this.actor = Stage::Started(context.into_future(actor));
        }
        match &mut this.actor {
            Stage::Started(actor) => {
                if stop {
                    actor.ctx().stop();
                }
                Pin::new(actor).poll(cx)
            }
            Stage::Made(..) | Stage::Over => Poll::Ready(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use actix::{Handler, Message, Running as Stopping};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[derive(Default)]
    struct Seen {
        started: Cell<u32>,
        handled: Cell<u32>,
        stopping: Cell<u32>,
    }

    struct Only {
        seen: Rc<Seen>,
        refusals: u32,
    }

    fn bump(count: &Cell<u32>) {
        count.set(count.get() + 1);
    }

    impl Actor for Only {
        type Context = Context<Self>;

        fn started(&mut self, _: &mut Self::Context) {
            bump(&self.seen.started);
        }

        fn stopping(&mut self, _: &mut Self::Context) -> Stopping {
            bump(&self.seen.stopping);
            if self.refusals == 0 {
                return Stopping::Stop;
            }
            self.refusals -= 1;
            Stopping::Continue
        }
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    struct Work;

    impl Handler<Work> for Only {
        type Result = ();

        fn handle(&mut self, _: Work, _: &mut Self::Context) {
            bump(&self.seen.handled);
        }
    }

    /// An actor, what it has left, and what was seen of it.
    fn start(refusals: u32) -> (Running<Only>, Rc<Cell<Duration>>, Rc<Seen>) {
        let seen = Rc::new(Seen::default());
        let left = Rc::new(Cell::new(LONG));
        let only = Only {
            seen: seen.clone(),
            refusals,
        };
        let remaining = left.clone();
        let running = Running::start(only, LONG / 2, move || remaining.get());
        (running, left, seen)
    }

    #[actix::test]
    async fn what_waits_in_the_mailbox_when_the_time_is_over_is_not_done() {
        let (mut running, left, seen) = start(0);
        running.addr.send(Work).await.unwrap();
        left.set(Duration::ZERO);
        let late = running.addr.send(Work).await;
        assert!(late.is_err());
        running.ended().await;
        assert_eq!((seen.handled.get(), seen.stopping.get()), (1, 1));
    }

    #[actix::test]
    async fn an_actor_whose_time_is_over_before_its_first_step_is_never_started() {
        let (mut running, left, seen) = start(0);
        left.set(Duration::ZERO);
        running.ended().await;
        assert_eq!((seen.started.get(), seen.handled.get()), (0, 0));
    }

    #[actix::test]
    async fn one_that_takes_its_time_is_told_again_only_when_there_is_none_left() {
        let (mut running, left, seen) = start(1);
        running.addr.send(Work).await.unwrap();
        left.set(LONG / 3);
        for _ in 0..3 {
            running.addr.send(Work).await.unwrap();
        }
        assert_eq!((seen.handled.get(), seen.stopping.get()), (4, 1));
        left.set(Duration::ZERO);
        assert!(running.addr.send(Work).await.is_err());
        running.ended().await;
        assert_eq!((seen.handled.get(), seen.stopping.get()), (4, 2));
    }

    #[actix::test]
    async fn it_is_stopped_from_outside() {
        let (mut running, _left, seen) = start(0);
        running.addr.send(Work).await.unwrap();
        running.stop();
        running.ended().await;
        assert_eq!((seen.handled.get(), seen.stopping.get()), (1, 1));
    }
}
