//! An HTTP/2 connection that several threads can poll.
//!
//! h2 queues the frames of a request, and the task that polls the connection writes them. If that task runs on another
//! thread than the caller, a call costs two changes of threads. So the connection is shared:
//!
//! - A caller on a connection with few open streams polls it directly after it has queued its request, instead of waking
//!   the driver. The request is written on the caller's thread.
//! - If a runtime other than the client's makes many calls, the connection moves there: a [`CallerDriver`] on that
//!   runtime reads and writes the socket, as if the application had its own connection. The client's driver checks every
//!   20 ms that the caller driver is polled, and takes the connection back if the application blocks its threads, if
//!   calls come from several runtimes, or if there are no more calls ([`DriverChoice`]).
//!
//! No poll waits for the lock of the connection, and no wake is lost ([`SharedPoll`]).

mod caller_driver;
mod driver_choice;
mod driver_wakes;
mod poll_lock;
mod shared_poll;
mod sync;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use h2::client::Connection;
use tokio::{
    runtime::{self, Handle},
    task::coop::has_budget_remaining,
    time::Instant,
};

use self::{
    caller_driver::CallerDriver,
    driver_choice::{CheckDecision, DriverChoice, SampleDecision},
    driver_wakes::DrivenBy,
    shared_poll::{HandOver, SharedPoll},
};
use super::{
    channel::ChannelMonitor, dial::BoxedSocket, movable_socket::SocketRegistration,
    wire_log::LoggedIo,
};

pub(super) type H2Connection = Connection<LoggedIo<BoxedSocket>, Bytes>;

/// Time between two checks of a connection that is driven by callers.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// One call in this many is sampled for the choice of the driver.
const SAMPLED_CALLS: u64 = 4;
/// Largest number of open streams at which a caller writes its request itself. With more callers it is cheaper to write
/// several requests at once.
const DIRECT_WRITE_STREAMS: usize = 2;

thread_local! {
    static THREAD_MARK: u8 = const { 0 };
}

/// Returns a number that no other live thread has.
fn thread_number() -> usize {
    THREAD_MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// A connection that its driver and its callers poll.
pub(crate) struct SharedConnection {
    state: SharedPoll<PolledConnection>,
    monitor: ChannelMonitor,
    /// `None` for a socket that cannot move.
    registration: Option<SocketRegistration>,
    client_runtime: runtime::Id,
    client_thread: usize,
    choice: Mutex<DriverChoice<runtime::Id>>,
    /// Number of calls from other threads than the client's.
    calls: AtomicU64,
    /// Number of polls by a [`CallerDriver`].
    caller_polls: AtomicU64,
    /// Number of moves to a [`CallerDriver`].
    moves: AtomicU64,
    /// Number of the move whose [`CallerDriver`] ended with its runtime; 0 before the first one.
    lost_move: AtomicU64,
    /// Why the connection ended.
    end: OnceLock<String>,
}

/// The part of a connection that is polled under a lock.
struct PolledConnection {
    /// `None` after the end.
    connection: Option<Box<H2Connection>>,
}

impl PolledConnection {
    fn has_ended(&self) -> bool {
        self.connection.is_none()
    }
}

impl SharedConnection {
    /// Called on the client's thread.
    pub(super) fn new(
        connection: H2Connection,
        monitor: ChannelMonitor,
        registration: Option<SocketRegistration>,
    ) -> Arc<Self> {
        let connection = Some(Box::new(connection));
        Arc::new(Self {
            state: SharedPoll::new(PolledConnection { connection }),
            monitor,
            registration,
            client_runtime: Handle::current().id(),
            client_thread: thread_number(),
            choice: Mutex::new(DriverChoice::new()),
            calls: AtomicU64::new(0),
            caller_polls: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            lost_move: AtomicU64::new(0),
            end: OnceLock::new(),
        })
    }

    /// Runs `send`, which passes a request to h2. Writes the request at once if the connection is quiet.
    ///
    /// Without budget, tokio's sockets are not ready, and their wakes wait until the worker thread of the caller has run
    /// other tasks. So such a caller leaves the poll to the driver.
    pub(super) fn send<R>(self: &Arc<Self>, send: impl FnOnce() -> R) -> R {
        if self.client_thread != thread_number() {
            self.count_call();
        }
        if self.monitor.open_streams() > DIRECT_WRITE_STREAMS || !has_budget_remaining() {
            return send();
        }
        let result = self
            .state
            .poll_after(send, |state, cx| self.poll(state, cx));
        if !has_budget_remaining() {
            self.state.wake(self.state.driven_by());
        }
        result
    }

    /// Polls the connection on the client's thread. Returns why it ended, if it has.
    pub(super) fn poll_as_client(&self, cx: &Context<'_>) -> Poll<String> {
        self.poll_as(DrivenBy::Client, cx);
        self.end()
            .map_or(Poll::Pending, |end| Poll::Ready(end.to_owned()))
    }

    /// Returns whether a [`CallerDriver`] drives the connection. Then a [`check`](Self::check) is due regularly.
    pub(super) fn is_driven_by_callers(&self) -> bool {
        self.state.driven_by() == DrivenBy::Callers
    }

    /// Returns whether the runtime that drives the connection has ended. A check then moves it at once.
    pub(super) fn has_lost_its_driver(&self) -> bool {
        let lost = self.lost_move.load(Ordering::SeqCst);
        lost != 0 && self.is_driven_since(lost)
    }

    /// Checks the driver on the runtime of the callers. Moves the connection to the current thread if needed.
    pub(super) fn check(&self, cx: &Context<'_>) {
        let lost = self.has_lost_its_driver();
        let polls = self.caller_polls.load(Ordering::Relaxed);
        let decision = self
            .choice()
            .check(polls, self.calls.load(Ordering::Relaxed));
        match decision {
            CheckDecision::MoveToClient => self.move_to_client(cx),
            _ if lost => self.move_to_client(cx),
            CheckDecision::WakeCallerDriver => self.state.wake(DrivenBy::Callers),
            CheckDecision::Stay => {}
        }
    }

    /// Closes the connection at once. A [`CallerDriver`] then ends.
    pub(super) fn close(&self) {
        let connection = self.state.lock_blocking().connection.take();
        drop(connection);
        self.set_end("the client closed the connection".to_owned());
        self.state.wake(DrivenBy::Callers);
    }

    fn move_to_client(&self, cx: &Context<'_>) {
        let prepare = |state: &mut PolledConnection| {
            match self.move_socket_here() {
                Err(error) if self.has_lost_its_driver() => {
                    state.connection = None;
                    self.set_end(format!(
                        "the socket could not be moved back to the client's thread ({error})"
                    ));
                }
                // The next check tries again.
                Err(_) => return None,
                Ok(()) => {}
            }
            Some(())
        };
        match self.hand_over(DrivenBy::Client, cx, prepare) {
            HandOver::Done(()) => {
                self.choice().moved_to_client(Instant::now());
                let endpoint = self.monitor.endpoint();
                tracing::debug!(%endpoint, "connection returned to the client's thread");
            }
            HandOver::Refused => {}
            HandOver::Busy => cx.waker().wake_by_ref(),
        }
    }

    fn poll_as(&self, driver: DrivenBy, cx: &Context<'_>) {
        self.state
            .poll_as(driver, cx.waker(), |state, cx| self.poll(state, cx));
    }

    fn hand_over<R>(
        &self,
        to: DrivenBy,
        cx: &Context<'_>,
        prepare: impl FnOnce(&mut PolledConnection) -> Option<R>,
    ) -> HandOver<R> {
        let poll = |state: &mut PolledConnection, cx: &mut Context<'_>| self.poll(state, cx);
        self.state.hand_over(to, cx.waker(), prepare, poll)
    }

    fn move_socket_here(&self) -> std::io::Result<()> {
        match &self.registration {
            Some(registration) => registration.move_to_current_runtime(),
            None => Ok(()),
        }
    }

    fn poll(&self, state: &mut PolledConnection, cx: &mut Context<'_>) {
        // Taken out while it is polled, so that a connection whose poll panicked has ended.
        let Some(mut connection) = state.connection.take() else {
            return;
        };
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let polled = Pin::new(&mut *connection).poll(cx);
            // The member may change the limit at any time; h2 reports no change.
            self.monitor
                .set_stream_limit(connection.max_concurrent_send_streams());
            polled
        }));
        let end = match polled {
            Ok(Poll::Pending) => {
                state.connection = Some(connection);
                return;
            }
            Ok(Poll::Ready(Ok(()))) => "the member closed the connection".to_owned(),
            Ok(Poll::Ready(Err(error))) => error.to_string(),
            Err(_) => "the HTTP/2 implementation panicked".to_owned(),
        };
        drop(connection);
        self.set_end(end);
    }

    fn set_end(&self, end: String) {
        // The first reason counts.
        let _ = self.end.set(end);
        self.state.wake(DrivenBy::Client);
    }

    fn end(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// Returns whether the [`CallerDriver`] of this move still drives the connection.
    fn is_driven_since(&self, number: u64) -> bool {
        self.is_driven_by_callers() && self.moves.load(Ordering::SeqCst) == number
    }

    fn choice(&self) -> MutexGuard<'_, DriverChoice<runtime::Id>> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and samples its runtime now and then.
    fn count_call(self: &Arc<Self>) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        // A runtime without I/O panics when it gets a socket, which must be caught.
        if cfg!(panic = "abort") || !calls.is_multiple_of(SAMPLED_CALLS) {
            return;
        }
        if self.registration.is_none() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if runtime.id() == self.client_runtime {
            return;
        }
        let decision = match self.choice.try_lock() {
            Ok(mut choice) => choice.sample(runtime.id(), Instant::now()),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => return,
        };
        if decision == SampleDecision::MoveToCaller {
            CallerDriver::spawn(self.clone(), &runtime);
        }
    }
}
