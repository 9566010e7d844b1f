//! The state that the clones of a channel share, and the progress of single requests.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use tokio::sync::Notify;

use super::stream_slots::StreamSlots;
use crate::transport::{endpoint::Endpoint, wire_log::WireLog};

pub(super) struct ChannelState {
    pub(super) endpoint: Endpoint,
    pub(super) wire_log: Arc<WireLog>,
    pub(super) max_response_size: usize,
    pub(super) slots: Arc<StreamSlots>,
    /// Whether h2 accepts no more requests, for example because the stream ids are used up.
    closed_to_requests: AtomicBool,
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
            slots: StreamSlots::new(),
            closed_to_requests: AtomicBool::new(false),
            closed_notify: Notify::new(),
        }
    }

    /// Returns whether the connection accepts another request, as far as is known.
    pub(super) fn accepts_requests(&self) -> bool {
        !self.closed_to_requests.load(Ordering::Relaxed) && !self.wire_log.has_gone_away()
    }

    pub(super) fn close_to_requests(&self) {
        if !self.closed_to_requests.swap(true, Ordering::Relaxed) {
            self.closed_notify.notify_one();
        }
    }
}

/// Observes a channel without keeping its connection open.
#[derive(Clone)]
pub(crate) struct ChannelMonitor(pub(super) Arc<ChannelState>);

impl ChannelMonitor {
    /// Creates the state of a new connection.
    pub(crate) fn new(
        endpoint: Endpoint,
        wire_log: Arc<WireLog>,
        max_response_size: usize,
    ) -> Self {
        let state = ChannelState::new(endpoint, wire_log, max_response_size);
        Self(Arc::new(state))
    }

    /// Returns the number of open requests and streams.
    pub(crate) fn open_streams(&self) -> usize {
        self.0.slots.open()
    }

    /// Waits until the connection accepts no more requests: after a GOAWAY, or when its stream ids are used up. Wakes
    /// one waiter, once.
    pub(crate) async fn closed_to_requests(&self) {
        tokio::select! {
            () = self.0.closed_notify.notified() => {}
            () = self.0.wire_log.gone_away() => {}
        }
    }

    /// Waits until the member allows fewer streams than this number.
    pub(crate) async fn stream_limit_below(&self, number: usize) {
        self.0.slots.limit_below(number).await;
    }

    /// Sets the number of streams that the member allows at once.
    pub(crate) fn set_stream_limit(&self, limit: usize) {
        self.0.slots.set_limit(limit);
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    pub(crate) fn wire_log(&self) -> &WireLog {
        &self.0.wire_log
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
