//! A link: all connections from clients to a server, or from one peer to another, and their current fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::proxy::SwitchableListener;

/// Direction of bytes on a link. The client is the side that dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the dialling side to the listener side.
    ToServer,
    /// From the listener side to the dialling side.
    ToClient,
}

/// Fault of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// Open connections are closed, new ones refused. Links between peers share a listener, so there a new connection
    /// is accepted and reset instead.
    Refuse,
    /// Open connections are reset (RST), new ones are accepted and reset.
    Reset,
    /// Connections stay open and new ones are accepted, but no byte is transferred in either direction.
    Freeze,
    /// Bytes are delayed by this duration, in both directions.
    Delay(Duration),
    /// No byte is transferred in this direction; the other one works.
    HalfOpen(Direction),
}

impl Fault {
    pub(crate) fn blocks(self, direction: Direction) -> bool {
        match self {
            Fault::Freeze => true,
            Fault::HalfOpen(blocked) => blocked == direction,
            Fault::None | Fault::Refuse | Fault::Reset | Fault::Delay(_) => false,
        }
    }

    pub(crate) fn delay(self) -> Duration {
        match self {
            Fault::Delay(delay) => delay,
            _ => Duration::ZERO,
        }
    }
}

/// How open connections are terminated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Termination {
    #[default]
    Close,
    Reset,
}

/// State of a link as the proxies see it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkState {
    pub(crate) fault: Fault,
    /// No server listens behind the link.
    pub(crate) server_down: bool,
    /// Incremented to terminate all open connections.
    pub(crate) generation: u64,
    pub(crate) termination: Termination,
}

impl LinkState {
    pub(crate) fn listens(&self) -> bool {
        !self.server_down && self.fault != Fault::Refuse
    }

    fn terminate(&mut self, termination: Termination) {
        self.generation += 1;
        self.termination = termination;
    }
}

/// Handle to all connections from clients to a server, or from one peer to another: injects faults and counts traffic.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    link_state: watch::Sender<LinkState>,
    listener: Option<Arc<SwitchableListener>>,
    open: AtomicUsize,
    accepted: AtomicU64,
    streams: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

impl Link {
    pub(crate) fn new(name: String, listener: Option<Arc<SwitchableListener>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                name,
                link_state: watch::Sender::default(),
                listener,
                open: AtomicUsize::new(0),
                accepted: AtomicU64::new(0),
                streams: AtomicU64::new(0),
                to_server: AtomicU64::new(0),
                to_client: AtomicU64::new(0),
            }),
        }
    }

    /// Returns the name of the link, for messages.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Sets the fault of the link, until the next call.
    pub fn set(&self, fault: Fault) {
        self.change(|link_state| {
            link_state.fault = fault;
            match fault {
                Fault::Refuse => link_state.terminate(Termination::Close),
                Fault::Reset => link_state.terminate(Termination::Reset),
                _ => {}
            }
        });
    }

    /// Removes the fault. Frozen connections continue without loss.
    pub fn heal(&self) {
        self.set(Fault::None);
    }

    /// Returns the current fault.
    pub fn fault(&self) -> Fault {
        self.shared.link_state.borrow().fault
    }

    /// Resets (RST) the open connections once; new ones work.
    pub fn reset_now(&self) {
        self.change(|link_state| link_state.terminate(Termination::Reset));
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Returns the number of HTTP/2 streams that the dialling side opened so far (HEADERS frames). Zero with TLS or
    /// HTTP/1.
    pub fn streams_opened(&self) -> u64 {
        self.shared.streams.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes transferred so far in one direction.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.byte_counter(direction).load(Ordering::SeqCst)
    }

    /// Sets whether the server behind the link is down. If it is, new connections are refused.
    pub(crate) fn set_server_down(&self, down: bool) {
        self.change(|link_state| link_state.server_down = down);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<LinkState> {
        self.shared.link_state.subscribe()
    }

    pub(crate) fn count_bytes(&self, direction: Direction, bytes: usize) {
        self.byte_counter(direction)
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_streams(&self, opened: u64) {
        if opened > 0 {
            self.shared.streams.fetch_add(opened, Ordering::SeqCst);
        }
    }

    pub(crate) fn count_accepted(&self) -> OpenConnection {
        self.shared.accepted.fetch_add(1, Ordering::SeqCst);
        self.shared.open.fetch_add(1, Ordering::SeqCst);
        OpenConnection(self.clone())
    }

    fn byte_counter(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::ToServer => &self.shared.to_server,
            Direction::ToClient => &self.shared.to_client,
        }
    }

    fn change(&self, change: impl FnOnce(&mut LinkState)) {
        self.shared.link_state.send_modify(|link_state| {
            change(link_state);
            // The listener changes before this returns, so that tests need not wait for the proxy task.
            if let Some(listener) = &self.shared.listener {
                listener.set_listening(link_state.listens());
            }
        });
    }
}

/// Counts a connection as open until dropped.
pub(crate) struct OpenConnection(Link);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.shared.open.fetch_sub(1, Ordering::SeqCst);
    }
}
