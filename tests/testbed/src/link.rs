//! A link: all connections from one place to another, and what is wrong with them at the moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::proxy::Listening;

/// Which way bytes go on a link. The client is who dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From who dialled to who listens.
    ToServer,
    /// From who listens to who dialled.
    ToClient,
}

/// What is wrong with a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Connections are closed, new ones refused. A link between peers shares its listener with other links: there a
    /// new connection is reset right after it was accepted.
    Refuse,
    /// Connections are reset (RST), new ones too, right after they were accepted.
    Reset,
    /// TCP stays up, no byte moves in either direction; new connections are accepted and stay silent.
    Freeze,
    /// Every byte arrives this much later, in both directions.
    Delay(Duration),
    /// No byte moves in this direction, the other one works.
    HalfOpen(Direction),
}

impl Fault {
    pub(crate) fn stops(self, direction: Direction) -> bool {
        match self {
            Fault::Freeze => true,
            Fault::HalfOpen(stopped) => stopped == direction,
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

/// How connections that exist are ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    #[default]
    Close,
    Reset,
}

/// What the proxies see of a link. A new `cut` ends every connection that is older than it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Condition {
    pub(crate) fault: Fault,
    pub(crate) down: bool,
    pub(crate) cut: u64,
    pub(crate) end: End,
}

impl Condition {
    pub(crate) fn listens(&self) -> bool {
        !self.down && self.fault != Fault::Refuse
    }
}

/// All connections from one place to another: a handle to make them fail and to count them.
#[derive(Clone, Debug)]
pub struct Link {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    name: String,
    condition: watch::Sender<Condition>,
    listening: Option<Arc<Listening>>,
    open: AtomicUsize,
    accepted: AtomicU64,
    streams: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

impl Link {
    pub(crate) fn new(name: String, listening: Option<Arc<Listening>>) -> Self {
        Self {
            state: Arc::new(State {
                name,
                condition: watch::Sender::default(),
                listening,
                open: AtomicUsize::new(0),
                accepted: AtomicU64::new(0),
                streams: AtomicU64::new(0),
                to_server: AtomicU64::new(0),
                to_client: AtomicU64::new(0),
            }),
        }
    }

    /// What it connects, for messages.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Makes the link fail from now on, until it is set to something else.
    pub fn set(&self, fault: Fault) {
        self.change(|condition| {
            condition.fault = fault;
            match fault {
                Fault::Refuse => (condition.cut, condition.end) = (condition.cut + 1, End::Close),
                Fault::Reset => (condition.cut, condition.end) = (condition.cut + 1, End::Reset),
                _ => {}
            }
        });
    }

    /// Makes the link work again. What was frozen goes on where it stood.
    pub fn heal(&self) {
        self.set(Fault::None);
    }

    /// What is wrong with it at the moment.
    pub fn fault(&self) -> Fault {
        self.state.condition.borrow().fault
    }

    /// Resets (RST) the connections there are, once; new ones work.
    pub fn reset_now(&self) {
        self.change(|condition| (condition.cut, condition.end) = (condition.cut + 1, End::Reset));
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// HTTP/2 streams opened so far by who dialled: HEADERS frames seen. Zero for what is not HTTP/2 in plain text.
    pub fn streams_opened(&self) -> u64 {
        self.state.streams.load(Ordering::SeqCst)
    }

    /// Bytes moved so far in one direction.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.moved(direction).load(Ordering::SeqCst)
    }

    /// Whoever listens behind the link is gone (or back): connections are refused as the kernel would.
    pub(crate) fn set_down(&self, down: bool) {
        self.change(|condition| condition.down = down);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Condition> {
        self.state.condition.subscribe()
    }

    pub(crate) fn count_moved(&self, direction: Direction, bytes: usize) {
        self.moved(direction)
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_streams(&self, opened: u64) {
        if opened > 0 {
            self.state.streams.fetch_add(opened, Ordering::SeqCst);
        }
    }

    pub(crate) fn count_accepted(&self) -> OpenConnection {
        self.state.accepted.fetch_add(1, Ordering::SeqCst);
        self.state.open.fetch_add(1, Ordering::SeqCst);
        OpenConnection(self.clone())
    }

    fn moved(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::ToServer => &self.state.to_server,
            Direction::ToClient => &self.state.to_client,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Condition)) {
        self.state.condition.send_modify(|condition| {
            change(condition);
            // Before this returns a refusing port refuses: a test need not wait for the proxy's task.
            if let Some(listening) = &self.state.listening {
                listening.set(condition.listens());
            }
        });
    }
}

/// Counts a connection as open for as long as it lives.
pub(crate) struct OpenConnection(Link);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.state.open.fetch_sub(1, Ordering::SeqCst);
    }
}
