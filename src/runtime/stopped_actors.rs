//! Detects that actors have stopped, for any number of actors with one timer per thread.
//!
//! actix sends no notification when an actor stops, so deliveries have to check. Ten thousand idle deliveries that each
//! check on their own cost a fifth of a core, mostly for timers and wakeups. Here one task per thread checks all actors
//! that deliveries on this thread wait for, and wakes only those deliveries whose actor has stopped. The task runs while
//! there are any.

use std::{
    cell::RefCell,
    collections::HashMap,
    future::poll_fn,
    task::{Poll, Waker},
    time::Duration,
};

use actix::{Message, Recipient};

/// Time between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

thread_local! {
    static WAITING: RefCell<WaitingDeliveries> = RefCell::default();
}

/// The deliveries on this thread that wait for the end of an actor.
#[derive(Default)]
struct WaitingDeliveries {
    last_id: u64,
    waiters: HashMap<u64, WaitingDelivery>,
    is_swept: bool,
}

struct WaitingDelivery {
    is_running: Box<dyn Fn() -> bool>,
    waker: Waker,
}

/// Waits until the actor behind `recipient` has stopped. Must be called on a thread with an arbiter.
pub(crate) async fn actor_stopped<M>(recipient: &Recipient<M>)
where
    M: Message<Result = ()> + Send + 'static,
    M::Result: Send,
{
    let mut registration: Option<WaiterRegistration> = None;
    poll_fn(|cx| {
        if !recipient.connected() {
            return Poll::Ready(());
        }
        if let Some(registration) = &registration {
            registration.update(cx.waker());
        } else {
            let recipient = recipient.clone();
            let is_running = Box::new(move || recipient.connected());
            let waker = cx.waker().clone();
            registration = Some(WaiterRegistration::new(WaitingDelivery {
                is_running,
                waker,
            }));
        }
        Poll::Pending
    })
    .await;
}

/// Removes the waiter when dropped.
struct WaiterRegistration(u64);

impl WaiterRegistration {
    fn new(waiter: WaitingDelivery) -> Self {
        let (id, start_sweep) = WAITING.with_borrow_mut(|waiting| {
            waiting.last_id += 1;
            waiting.waiters.insert(waiting.last_id, waiter);
            let was_swept = std::mem::replace(&mut waiting.is_swept, true);
            (waiting.last_id, !was_swept)
        });
        if start_sweep {
            actix_rt::spawn(sweep_while_needed(SweepGuard));
        }
        Self(id)
    }

    fn update(&self, waker: &Waker) {
        WAITING.with_borrow_mut(|waiting| {
            if let Some(waiter) = waiting.waiters.get_mut(&self.0) {
                waiter.waker.clone_from(waker);
            }
        });
    }
}

impl Drop for WaiterRegistration {
    fn drop(&mut self) {
        // Fails while the thread ends. The waiter is dropped outside of the borrow: its recipient may be the last
        // address of an actor.
        let _removed = WAITING.try_with(|waiting| {
            let mut waiting = waiting.try_borrow_mut().ok()?;
            waiting.waiters.remove(&self.0)
        });
    }
}

/// Lets the next waiter start another task, also if the runtime ended before the task did.
struct SweepGuard;

impl Drop for SweepGuard {
    fn drop(&mut self) {
        let _ = WAITING.try_with(|waiting| {
            if let Ok(mut waiting) = waiting.try_borrow_mut() {
                waiting.is_swept = false;
            }
        });
    }
}

async fn sweep_while_needed(_guard: SweepGuard) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let (is_needed, stopped) = WAITING.with_borrow_mut(WaitingDeliveries::sweep);
        stopped.into_iter().for_each(Waker::wake);
        if !is_needed {
            return;
        }
    }
}

impl WaitingDeliveries {
    /// Returns whether there are waiters, and the wakers of those whose actor has stopped.
    fn sweep(&mut self) -> (bool, Vec<Waker>) {
        let stopped = self
            .waiters
            .values()
            .filter(|waiter| !(waiter.is_running)());
        let stopped = stopped.map(|waiter| waiter.waker.clone()).collect();
        if self.waiters.is_empty() {
            // Ten thousand watches may have ended.
            self.waiters = HashMap::new();
        }
        (!self.waiters.is_empty(), stopped)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, pin::pin, rc::Rc, time::Duration};

    use actix::{Actor, ActorContext, Addr, Context, Handler};

    use super::*;

    struct Idle;

    impl Actor for Idle {
        type Context = Context<Self>;
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    struct Stop;

    impl Handler<Stop> for Idle {
        type Result = ();

        fn handle(&mut self, _: Stop, ctx: &mut Context<Self>) {
            ctx.stop();
        }
    }

    /// Waits for the end of an actor and counts the polls.
    fn spawn_waiter(actor: &Addr<Idle>, polls: &Rc<Cell<usize>>) -> actix_rt::task::JoinHandle<()> {
        let (recipient, polls) = (actor.clone().recipient::<Stop>(), polls.clone());
        actix_rt::spawn(async move {
            let mut stopped = pin!(actor_stopped(&recipient));
            poll_fn(|cx| {
                polls.set(polls.get() + 1);
                stopped.as_mut().poll(cx)
            })
            .await;
        })
    }

    fn waiters() -> usize {
        WAITING.with_borrow(|waiting| waiting.waiters.len())
    }

    #[actix::test]
    async fn idle_waiters_are_not_polled() {
        tokio::time::pause();
        let polls = Rc::default();
        let actors: Vec<_> = (0..1000).map(|_| Idle.start()).collect();
        let waiting: Vec<_> = actors.iter().map(|a| spawn_waiter(a, &polls)).collect();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(polls.get(), 1000, "each was polled once, at the start");
        actors[7].do_send(Stop);
        tokio::time::sleep(2 * SWEEP_INTERVAL).await;
        assert_eq!(polls.get(), 1001);
        let ended = waiting.iter().filter(|waiter| waiter.is_finished());
        assert_eq!((ended.count(), waiters()), (1, 999));
    }

    #[actix::test]
    async fn sweep_ends_with_last_waiter_and_starts_again() {
        tokio::time::pause();
        for _ in 0..3 {
            let (actor, polls) = (Idle.start(), Rc::default());
            let waiter = spawn_waiter(&actor, &polls);
            let dropped = spawn_waiter(&actor, &polls);
            tokio::time::sleep(3 * SWEEP_INTERVAL).await;
            assert_eq!(waiters(), 2);
            dropped.abort();
            actor.do_send(Stop);
            waiter.await.unwrap();
            assert_eq!(waiters(), 0);
            tokio::time::sleep(2 * SWEEP_INTERVAL).await;
            assert!(!WAITING.with_borrow(|waiting| waiting.is_swept));
        }
    }

    #[test]
    fn sweep_of_ended_runtime_is_replaced() {
        for _ in 0..2 {
            actix_rt::System::new().block_on(async {
                let (actor, polls) = (Idle.start(), Rc::default());
                let waiter = spawn_waiter(&actor, &polls);
                actor.send(Stop).await.unwrap();
                waiter.await.unwrap();
            });
        }
    }
}
