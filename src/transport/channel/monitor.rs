//! The state that the clones of a channel share, and the progress of single requests.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
};

use tokio::sync::{Notify, Semaphore};

use crate::transport::{endpoint::Endpoint, wire_log::WireLog};

pub(super) struct ChannelState {
    pub(super) endpoint: Endpoint,
    pub(super) wire_log: Arc<WireLog>,
    pub(super) max_response_size: usize,
    pub(super) open_streams: AtomicUsize,
    /// Permits for requests, if the member limits the streams of a connection. Requests wait for a permit and not
    /// inside h2, so that a waiting request is known to be unsent.
    pub(super) stream_permits: OnceLock<Semaphore>,
    /// Whether the connection accepts no more requests: after a GOAWAY, or when its stream ids are used up.
    pub(super) closed_to_requests: AtomicBool,
    closed_notify: Notify,
}

impl ChannelState {
    pub(super) fn new(
        endpoint: Endpoint,
        wire_log: Arc<WireLog>,
        max_response_size: usize,
    ) -> Self {
        Self {
            endpoint,
            wire_log,
            max_response_size,
            open_streams: AtomicUsize::new(0),
            stream_permits: OnceLock::new(),
            closed_to_requests: AtomicBool::new(false),
            closed_notify: Notify::new(),
        }
    }

    pub(super) fn close_to_requests(&self) {
        if !self.closed_to_requests.swap(true, Ordering::Relaxed) {
            self.closed_notify.notify_one();
        }
    }
}

/// Observes a channel without keeping its connection open.
#[derive(Clone)]
pub(crate) struct ChannelMonitor(Arc<ChannelState>);

impl ChannelMonitor {
    pub(super) fn new(state: Arc<ChannelState>) -> Self {
        Self(state)
    }

    /// Returns the number of open requests and streams.
    pub(crate) fn open_streams(&self) -> usize {
        self.0.open_streams.load(Ordering::Relaxed)
    }

    /// Waits until the connection accepts no more requests. Wakes one waiter, once.
    pub(crate) async fn closed_to_requests(&self) {
        self.0.closed_notify.notified().await;
    }
}

/// Counts a stream while it is open.
pub(super) struct OpenStreamGuard(Arc<ChannelState>);

impl OpenStreamGuard {
    pub(super) fn new(state: &Arc<ChannelState>) -> Self {
        state.open_streams.fetch_add(1, Ordering::Relaxed);
        Self(state.clone())
    }
}

impl Drop for OpenStreamGuard {
    fn drop(&mut self) {
        self.0.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Progress of a request, readable by a caller that abandons the request.
#[derive(Debug, Default)]
pub(crate) struct RequestTracker {
    stream_id: AtomicU32,
    response_started: AtomicBool,
}

impl RequestTracker {
    /// Returns whether h2 holds the request, so that it was sent or may be sent at any time.
    pub(crate) fn may_be_sent(&self) -> bool {
        self.stream_id.load(Ordering::Relaxed) != 0
    }

    /// Returns whether the response has started to arrive.
    pub(crate) fn response_started(&self) -> bool {
        self.response_started.load(Ordering::Relaxed)
    }

    pub(super) fn handed_to_h2(&self, stream_id: u32) {
        self.stream_id.store(stream_id, Ordering::Relaxed);
    }

    pub(super) fn response_arrived(&self) {
        self.response_started.store(true, Ordering::Relaxed);
    }
}
