//! An actor that stops before its time is over.
//!
//! The remaining time is checked before every poll of the actor and before every message, not only by a timer: a
//! process that continues after a pause has many timers and messages due at once, in any order, and may have been paused
//! between two messages. An actor whose time is over handles no message any more, and is dropped if it refuses to stop.
//!
//! actix handles all queued messages in one poll. So the messages of this actor wait in a channel of their own, and
//! [`TimedMailbox`], a future in the actor's context, handles them one by one.

use std::{
    cell::Cell,
    pin::Pin,
    rc::Rc,
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use actix::{
    Actor, ActorContext, ActorFuture, Addr, AsyncContext, Context,
    dev::{
        AsyncContextParts, ContextFut, ContextParts, EnvelopeProxy,
        channel::{AddressReceiver, channel},
    },
};
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;

/// Messages in the mailbox before senders wait, as in actix.
const MAILBOX_CAPACITY: usize = 16;

pub(super) struct TimeLimitedActor<A: Actor> {
    pub(super) addr: Addr<A>,
    stop: mpsc::UnboundedSender<()>,
    ended: watch::Receiver<()>,
}

impl<A: Actor<Context = Context<A>>> TimeLimitedActor<A> {
    /// Starts the actor on the current arbiter. It is stopped as soon as no more than `margin` remains, at the latest
    /// before its next message, and dropped when no time remains. `keep` is dropped after the actor.
    pub(super) fn start(
        actor: A,
        margin: Duration,
        remaining: impl Fn() -> Duration + 'static,
        keep: impl Unpin + 'static,
    ) -> Self {
        let (stop, stop_requests) = mpsc::unbounded_channel();
        let (alive, ended) = watch::channel(());
        let (sender, messages) = channel(MAILBOX_CAPACITY);
        let mut context = Context::new();
        // Before anything uses the context: its own mailbox is replaced.
        *context.parts() = ContextParts::new(messages.sender_producer());
        let limit = Rc::new(TimeLimit {
            margin,
            remaining: Box::new(remaining),
            stopped_once: Cell::new(false),
        });
        let mailbox = TimedMailbox {
            messages,
            limit: limit.clone(),
        };
        context.spawn(mailbox);
        actix_rt::spawn(TimeLimitedRun {
            stage: ActorStage::NotStarted(context, actor),
            stop_requested: false,
            stop_requests,
            limit,
            _keep: keep,
            _alive: alive,
        });
        Self {
            addr: Addr::new(sender),
            stop,
            ended,
        }
    }

    /// Requests the actor to stop, which it may refuse unless its time is over.
    pub(super) fn stop(&self) {
        // An error means that the actor has ended.
        let _ = self.stop.send(());
    }

    /// Waits until the actor has ended.
    pub(super) async fn ended(&mut self) {
        // The sender never sends; it is dropped after the actor.
        let _ = self.ended.changed().await;
    }
}

/// The time of an actor, and whether it was already stopped.
struct TimeLimit {
    margin: Duration,
    remaining: Box<dyn Fn() -> Duration>,
    stopped_once: Cell<bool>,
}

/// The action before the next step of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStep {
    Run,
    Stop,
    /// Stop the actor, and drop it if it refuses.
    End,
}

impl TimeLimit {
    /// An actor that refuses to stop goes on until its time is over.
    fn next_step(&self, stop_requested: bool) -> NextStep {
        let remaining = (self.remaining)();
        if remaining.is_zero() {
            NextStep::End
        } else if (stop_requested || remaining <= self.margin) && !self.stopped_once.get() {
            NextStep::Stop
        } else {
            NextStep::Run
        }
    }
}

/// Handles the messages of the actor.
struct TimedMailbox<A: Actor> {
    messages: AddressReceiver<A>,
    limit: Rc<TimeLimit>,
}

impl<A: Actor<Context = Context<A>>> ActorFuture<A> for TimedMailbox<A> {
    type Output = ();

    fn poll(
        mut self: Pin<&mut Self>,
        actor: &mut A,
        ctx: &mut Context<A>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<()> {
        while !ctx.waiting() {
            if self.limit.next_step(false) != NextStep::Run {
                // `TimeLimitedRun` stops the actor.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match Pin::new(&mut self.messages).poll_next(cx) {
                Poll::Ready(Some(mut message)) => message.handle(actor, ctx),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Pending
    }
}

enum ActorStage<A: Actor<Context = Context<A>>> {
    /// Kept apart, because dropping a context future that was never polled would start its actor.
    NotStarted(Context<A>, A),
    Started(ContextFut<A, Context<A>>),
    Ended,
}

struct TimeLimitedRun<A: Actor<Context = Context<A>>, K> {
    stage: ActorStage<A>,
    stop_requested: bool,
    stop_requests: mpsc::UnboundedReceiver<()>,
    limit: Rc<TimeLimit>,
    /// Dropped after the actor.
    _keep: K,
    /// Dropped after everything else.
    _alive: watch::Sender<()>,
}

impl<A, K> Future for TimeLimitedRun<A, K>
where
    A: Actor<Context = Context<A>>,
    K: Unpin,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let this = &mut *self;
        while let Poll::Ready(request) = this.stop_requests.poll_recv(cx) {
            this.stop_requested = true;
            if request.is_none() {
                break;
            }
        }
        let step = this.limit.next_step(this.stop_requested);
        if let ActorStage::NotStarted(..) = this.stage
            && let ActorStage::NotStarted(context, actor) =
                std::mem::replace(&mut this.stage, ActorStage::Ended)
            && step == NextStep::Run
        {
            this.stage = ActorStage::Started(context.into_future(actor));
        }
        let ActorStage::Started(actor) = &mut this.stage else {
            return Poll::Ready(());
        };
        if step != NextStep::Run {
            this.limit.stopped_once.set(true);
            actor.ctx().stop();
        }
        let polled = Pin::new(actor).poll(cx);
        if step == NextStep::End {
            this.stage = ActorStage::Ended;
            return Poll::Ready(());
        }
        polled
    }
}

#[cfg(test)]
mod tests {
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
        /// Set to zero by the message [`Pause`].
        remaining: Rc<Cell<Duration>>,
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

    /// The process is paused until the time is over.
    #[derive(Message)]
    #[rtype(result = "()")]
    struct Pause;

    impl Handler<Pause> for CountingActor {
        type Result = ();

        fn handle(&mut self, _: Pause, _: &mut Self::Context) {
            self.remaining.set(Duration::ZERO);
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
            remaining: remaining.clone(),
        };
        let limit = remaining.clone();
        let actor = TimeLimitedActor::start(actor, LONG / 2, move || limit.get(), ());
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

    #[actix::test]
    async fn pause_between_queued_messages_ends_actor() {
        let (mut actor, _remaining, counts) = start(0);
        for _ in 0..3 {
            actor.addr.do_send(Work);
        }
        actor.addr.do_send(Pause);
        for _ in 0..3 {
            actor.addr.do_send(Work);
        }
        actor.ended().await;
        assert_eq!((counts.handled.get(), counts.stopping.get()), (3, 1));
    }

    #[actix::test]
    async fn refusing_actor_is_dropped_at_time_limit() {
        let (mut actor, remaining, counts) = start(u32::MAX);
        actor.addr.send(Work).await.unwrap();
        let kept = Rc::downgrade(&counts);
        remaining.set(Duration::ZERO);
        actor.stop();
        actor.ended().await;
        assert!(!actor.addr.connected());
        drop(counts);
        assert_eq!(kept.strong_count(), 0, "the actor is dropped");
    }

    /// Records whether the actor was dropped before it.
    struct DroppedLast {
        actor: std::rc::Weak<Counts>,
        is_last: Rc<Cell<bool>>,
    }

    impl Drop for DroppedLast {
        fn drop(&mut self) {
            self.is_last.set(self.actor.strong_count() == 0);
        }
    }

    #[test]
    fn kept_value_is_dropped_after_actor() {
        let is_last = Rc::new(Cell::new(false));
        let system = actix_rt::System::new();
        system.block_on(async {
            let counts = Rc::new(Counts::default());
            let keep = DroppedLast {
                actor: Rc::downgrade(&counts),
                is_last: is_last.clone(),
            };
            let actor = CountingActor {
                counts,
                refusals: 0,
                remaining: Rc::default(),
            };
            let actor = TimeLimitedActor::start(actor, Duration::ZERO, || LONG, keep);
            actor.addr.send(Work).await.unwrap();
        });
        // The actor still runs, and ends with its system.
        drop(system);
        assert!(is_last.get());
    }
}
