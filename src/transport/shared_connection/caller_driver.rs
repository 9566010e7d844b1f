//! Drives a connection on the runtime of its callers.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use tokio::{runtime::Handle, task::yield_now, time::Instant};

use super::{PolledConnection, SharedConnection, driver_wakes::DrivenBy, shared_poll::HandOver};

/// With more open streams than this, the driver lets the tasks that are ready run before it writes, so that one system
/// call writes the requests of all of them.
const BATCHED_STREAMS: usize = 4;

/// Largest number of times that it does so before it writes.
const MAX_YIELDS: u32 = 8;

/// Moves a connection to the runtime that it is spawned on, and drives it until it moves back or ends.
pub(super) struct CallerDriver {
    connection: Arc<SharedConnection>,
    phase: Phase,
    /// Number of calls at the last poll.
    seen_calls: u64,
    /// Number of polls in a row that only let other tasks run.
    yields: u32,
}

enum Phase {
    /// Waits for the socket.
    Moving,
    /// Drives the connection, since the move with this number.
    Driving(u64),
    Ended,
}

impl CallerDriver {
    pub(super) fn spawn(connection: Arc<SharedConnection>, runtime: &Handle) {
        runtime.spawn(Self {
            connection,
            phase: Phase::Moving,
            seen_calls: 0,
            yields: 0,
        });
    }

    /// Returns whether the driver should first let the tasks run that are ready, because they may send more requests.
    fn batches_requests(&mut self) -> bool {
        let calls = self.connection.calls.load(Ordering::Relaxed);
        let has_new_calls = calls != self.seen_calls;
        self.seen_calls = calls;
        let batches = has_new_calls
            && self.yields < MAX_YIELDS
            && self.connection.monitor.open_streams() > BATCHED_STREAMS;
        self.yields = if batches { self.yields + 1 } else { 0 };
        batches
    }

    fn poll_move(&mut self, cx: &Context<'_>) -> Poll<()> {
        let connection = &*self.connection;
        let prepare = |state: &mut PolledConnection| {
            if state.has_ended() {
                return None;
            }
            connection.move_socket_here().ok()?;
            // Changes under the lock only.
            Some(connection.moves.fetch_add(1, Ordering::SeqCst) + 1)
        };
        match connection.hand_over(DrivenBy::Callers, cx, prepare) {
            HandOver::Done(number) => {
                self.phase = Phase::Driving(number);
                connection.choice().moved_to_callers(Instant::now());
                let endpoint = connection.monitor.endpoint();
                tracing::debug!(%endpoint, "connection moved to the runtime of its callers");
                Poll::Pending
            }
            HandOver::Refused => {
                connection.choice().move_failed(Instant::now());
                self.phase = Phase::Ended;
                Poll::Ready(())
            }
            HandOver::Busy => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl Future for CallerDriver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let number = match self.phase {
            Phase::Moving => return self.poll_move(cx),
            Phase::Driving(number) => number,
            Phase::Ended => return Poll::Ready(()),
        };
        let connection = self.connection.clone();
        let has_ended = || !connection.is_driven_since(number) || connection.end().is_some();
        if has_ended() {
            self.phase = Phase::Ended;
            return Poll::Ready(());
        }
        connection.caller_polls.fetch_add(1, Ordering::Relaxed);
        if self.batches_requests() {
            // Wakes the driver when all other tasks have run. A plain wake would not wait for the tasks of a `LocalSet`.
            let _ = pin!(yield_now()).poll(cx);
        } else {
            connection.poll_as(DrivenBy::Callers, cx);
            // The wake at the end of the drive may have come before the poll registered the waker.
            if has_ended() {
                self.phase = Phase::Ended;
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Drop for CallerDriver {
    /// If the runtime ended while this driver had the connection, the client's driver takes it back.
    fn drop(&mut self) {
        match self.phase {
            Phase::Moving => self.connection.choice().move_cancelled(),
            Phase::Driving(number) if self.connection.is_driven_since(number) => {
                self.connection.lost_move.store(number, Ordering::SeqCst);
                self.connection.state.wake(DrivenBy::Client);
            }
            Phase::Driving(_) | Phase::Ended => {}
        }
    }
}
