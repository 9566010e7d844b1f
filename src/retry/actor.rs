//! The actor that schedules retries.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, SpawnHandle, Supervised};
use tokio::time::Instant;

use super::{MemberReady, ScheduleRetry};
use crate::runtime::supervisor::{crashes, supervise};

/// Holds the tickets of waiting calls, earliest first.
#[derive(Default)]
pub(crate) struct RetryActor {
    waiting: BinaryHeap<Reverse<PendingRetry>>,
    timer: Option<(Instant, SpawnHandle)>,
}

/// A scheduled retry, ordered by its time.
struct PendingRetry(ScheduleRetry);

impl RetryActor {
    pub(crate) fn start() -> Addr<Self> {
        supervise("retry", |_| {}, |_| Self::default())
    }

    /// Sends the tickets that are due.
    fn release_due(&mut self, ctx: &mut Context<Self>) {
        let now = Instant::now();
        while let Some(Reverse(PendingRetry(first))) = self.waiting.peek() {
            if first.due > now && !first.ticket.is_closed() {
                break;
            }
            if let Some(Reverse(PendingRetry(due))) = self.waiting.pop() {
                // Fails if the call has ended.
                let _ = due.ticket.send(());
            }
        }
        self.set_timer(ctx);
    }

    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        let next = self
            .waiting
            .peek()
            .map(|Reverse(PendingRetry(first))| first.due);
        if self.timer.as_ref().map(|(due, _)| *due) == next {
            return;
        }
        if let Some((_, pending)) = self.timer.take() {
            ctx.cancel_future(pending);
        }
        if let Some(due) = next {
            let delay = due.saturating_duration_since(Instant::now());
            self.timer = Some((due, ctx.notify_later(TicketDue, delay)));
        }
    }
}

/// The earliest ticket is due.
#[derive(Message)]
#[rtype(result = "()")]
struct TicketDue;

impl Actor for RetryActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // After a crash the tickets remain, but the timer is gone.
        self.timer = None;
        self.release_due(ctx);
    }
}

impl Supervised for RetryActor {}

crashes!(RetryActor);

impl Handler<ScheduleRetry> for RetryActor {
    type Result = ();

    fn handle(&mut self, retry: ScheduleRetry, ctx: &mut Context<Self>) {
        self.waiting.push(Reverse(PendingRetry(retry)));
        self.set_timer(ctx);
    }
}

impl Handler<MemberReady> for RetryActor {
    type Result = ();

    fn handle(&mut self, _: MemberReady, ctx: &mut Context<Self>) {
        self.waiting = std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|Reverse(PendingRetry(mut waiting))| {
                waiting.due = waiting.due.min(waiting.not_before);
                Reverse(PendingRetry(waiting))
            })
            .collect();
        self.release_due(ctx);
    }
}

impl Handler<TicketDue> for RetryActor {
    type Result = ();

    fn handle(&mut self, _: TicketDue, ctx: &mut Context<Self>) {
        self.timer = None;
        self.release_due(ctx);
    }
}

impl PartialEq for PendingRetry {
    fn eq(&self, other: &Self) -> bool {
        self.0.due == other.0.due
    }
}

impl Eq for PendingRetry {}

impl PartialOrd for PendingRetry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PendingRetry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.due.cmp(&other.0.due)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::runtime::supervisor::Crash;

    fn schedule(actor: &Addr<RetryActor>, due: u64, not_before: u64) -> oneshot::Receiver<()> {
        let (ticket, ticket_receiver) = oneshot::channel();
        let now = Instant::now();
        actor.do_send(ScheduleRetry {
            due: now + Duration::from_millis(due),
            not_before: now + Duration::from_millis(not_before),
            ticket,
        });
        ticket_receiver
    }

    #[actix::test]
    async fn tickets_are_sent_in_order_of_time() {
        tokio::time::pause();
        let actor = RetryActor::start();
        let start = Instant::now();
        let (late, early) = (schedule(&actor, 800, 0), schedule(&actor, 300, 0));
        early.await.unwrap();
        assert_eq!(start.elapsed().as_millis() / 10, 30);
        late.await.unwrap();
        assert_eq!(start.elapsed().as_millis() / 10, 80);
    }

    #[actix::test]
    async fn ready_member_ends_the_backoff_not_the_budget() {
        tokio::time::pause();
        let actor = RetryActor::start();
        let start = Instant::now();
        let (free, limited) = (schedule(&actor, 800, 0), schedule(&actor, 800, 400));
        actor.do_send(MemberReady);
        free.await.unwrap();
        assert!(start.elapsed() < Duration::from_millis(50));
        limited.await.unwrap();
        assert_eq!(start.elapsed().as_millis() / 10, 40);
    }

    #[actix::test]
    async fn crash_loses_no_ticket() {
        tokio::time::pause();
        let actor = RetryActor::start();
        let ticket = schedule(&actor, 100, 0);
        actor.do_send(Crash);
        ticket.await.unwrap();
    }
}
