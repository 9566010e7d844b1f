//! Detects that actors have stopped, for any number of actors with one timer per thread.
//!
//! actix sends no notification when an actor stops, so deliveries have to check. Ten thousand idle deliveries that each
//! check on their own cost a fifth of a core, mostly for timers and wakeups. Here one task per thread checks the actors
//! that deliveries on this thread wait for, and wakes only those deliveries whose actor has stopped. The task runs while
//! there are any.
//!
//! A sweep checks a limited number of deliveries, in rotation, so its cost does not grow with the number of deliveries.
//! A stopped actor is found within half a second per thousand deliveries, or sooner, when the next item is sent to it.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::poll_fn,
    task::{Poll, Waker},
    time::Duration,
};

use actix::{Message, Recipient};

/// Time between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
/// Number of deliveries that one sweep checks.
const CHECKS_PER_SWEEP: usize = 1000;

thread_local! {
    static WAITING: RefCell<WaitingDeliveries> = RefCell::default();
}

/// The deliveries on this thread that wait for the end of an actor.
#[derive(Default)]
struct WaitingDeliveries {
    last_id: u64,
    waiters: BTreeMap<u64, WaitingDelivery>,
    /// Last delivery that was checked; the next sweep continues after it.
    last_checked: u64,
    is_swept: bool,
}

struct WaitingDelivery {
    is_running: Box<dyn Fn() -> bool>,
    waker: Waker,
}

/// Waits until the actor behind `recipient` has stopped. Must be called on a thread with an arbiter.
pub(crate) async fn actor_stopped<M>(recipient: &Recipient<M>)
where
    M: Message + Send + 'static,
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
    /// Checks the next deliveries in rotation. Returns whether there are waiters, and the wakers of the checked ones
    /// whose actor has stopped.
    fn sweep(&mut self) -> (bool, Vec<Waker>) {
        let mut stopped = Vec::new();
        let after = self.waiters.range(self.last_checked + 1..);
        let from_the_start = self.waiters.range(..=self.last_checked);
        let mut last_checked = self.last_checked;
        for (id, waiter) in after.chain(from_the_start).take(CHECKS_PER_SWEEP) {
            last_checked = *id;
            if !(waiter.is_running)() {
                stopped.push(waiter.waker.clone());
            }
        }
        self.last_checked = last_checked;
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
    async fn sweep_checks_limited_number_in_rotation() {
        let checks = Rc::new(RefCell::new(Vec::new()));
        let mut waiting = WaitingDeliveries::default();
        let count = 2 * CHECKS_PER_SWEEP as u64 + 10;
        for id in 1..=count {
            let checks = checks.clone();
            let is_running = Box::new(move || {
                checks.borrow_mut().push(id);
                id != 5
            });
            let waker = Waker::noop().clone();
            waiting
                .waiters
                .insert(id, WaitingDelivery { is_running, waker });
        }
        let found: Vec<usize> = (0..3).map(|_| waiting.sweep().1.len()).collect();
        assert_eq!(found, [1, 0, 1], "the third sweep starts over");
        let per_sweep = CHECKS_PER_SWEEP as u64;
        let expected: Vec<u64> = (1..=count).chain(1..=3 * per_sweep - count).collect();
        assert_eq!(*checks.borrow(), expected);
        waiting.waiters.retain(|id, _| *id == 7);
        checks.borrow_mut().clear();
        waiting.sweep();
        assert_eq!(*checks.borrow(), [7], "each once per sweep");
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
