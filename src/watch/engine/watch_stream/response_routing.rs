//! Routes each response to the watch it belongs to.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    SEQUENTIAL_WATCHES_PER_STREAM, StreamActor,
    actor::{CreateStatus, StreamWatch},
    create_pairing::{IdSource, Removed, ResponseTarget},
    protocol_error,
};
use crate::{
    connection::{Connection, ServerVersion},
    proto::{Event, WatchResponse},
    watch::engine::{
        cursor::ProgressOrder,
        event_buffer::{BufferSize, EventBuffer},
        freshness_record::Attachment,
        hub::CreateResponseReceived,
        watch_actor::{ServerCancel, StreamUpdate},
    },
};

/// Effects of one batch of responses on the buffers of its watches.
pub(super) struct BatchEffects {
    /// Events so far, and all bytes of the batch.
    size: BufferSize,
    /// Buffers that may be nearly full once their watches have handled the batch.
    pub(super) nearly_full: Vec<Arc<EventBuffer>>,
}

impl BatchEffects {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            size: BufferSize { events: 0, bytes },
            nearly_full: Vec::new(),
        }
    }

    fn add_events(&mut self, events: usize, buffer: &Arc<EventBuffer>) {
        self.size.events += events;
        // The events are not in the buffer yet, but all events of the batch may be for it.
        if buffer.is_nearly_full_with(self.size) {
            let last = self.nearly_full.last();
            if !last.is_some_and(|last| Arc::ptr_eq(last, buffer)) {
                self.nearly_full.push(buffer.clone());
            }
        }
    }
}

impl StreamActor {
    pub(super) fn route(&mut self, response: WatchResponse, effects: &mut BatchEffects) {
        let header = response.header.unwrap_or_default();
        let (revision, cluster_id) = (header.revision, header.cluster_id);
        self.newest_revision = self.newest_revision.max(revision);
        let create_status = match (response.created, response.canceled) {
            (false, _) => None,
            (true, false) => Some(CreateStatus::Created),
            (true, true) => Some(CreateStatus::Refused),
        };
        let endpoint = self.connection.id;
        let cancelled = |response: WatchResponse, bookmark| StreamUpdate::Cancelled {
            endpoint,
            bookmark,
            cancel: ServerCancel {
                refused: response.created,
                compact_revision: response.compact_revision,
                reason: response.cancel_reason,
            },
        };
        match self.pairing.pair(&response) {
            ResponseTarget::Created { id, watch } => {
                // A proxy may have chosen another id, and a cancel has to name that one.
                self.ids.insert(watch.watch, id);
                let created_after = self.progress.last_request();
                watch.created_after = Some(created_after);
                let attachment = Attachment {
                    progress: self.shared_progress.clone(),
                    created_after,
                    member: header.member_id,
                };
                watch.freshness.attached(watch.attempt, attachment);
                let connected = watch.send(StreamUpdate::Created {
                    revision,
                    cluster_id,
                });
                self.cancel_if_stopped(id, connected);
            }
            ResponseTarget::Watch { watch } => {
                let update = if response.events.is_empty() {
                    // etcd sends progress of one watch through the same queue as its events.
                    let order = ProgressOrder::AfterEvents;
                    let now = Instant::now();
                    watch.freshness.progress_sent(watch.attempt, revision, now);
                    StreamUpdate::Progress { revision, order }
                } else {
                    effects.add_events(response.events.len(), &watch.buffer);
                    let now = Instant::now();
                    record_events(watch, &response.events, now);
                    let created_after = watch.created_after.unwrap_or_default();
                    let oldest = || {
                        let revisions = response.events.iter().map(Event::revision);
                        revisions.min().unwrap_or_default()
                    };
                    if self.progress.events_received(created_after, oldest, now) {
                        self.shared_progress.publish(self.progress.certain(now));
                    }
                    StreamUpdate::Events {
                        events: response.events,
                        fragment: response.fragment,
                    }
                };
                let connected = watch.send(update);
                self.cancel_if_stopped(response.watch_id, connected);
            }
            ResponseTarget::Refused { watch } => {
                watch.send(cancelled(response, None));
                self.forget(watch.watch);
            }
            ResponseTarget::Canceled {
                id,
                watch,
                send_cancel,
            } => {
                if send_cancel {
                    self.send_cancel(id);
                }
                watch.send(cancelled(response, self.bookmark(&watch)));
                self.forget(watch.watch);
            }
            ResponseTarget::Stream => {
                let order = requested_progress_order(&self.connection);
                let now = Instant::now();
                let after_events = order == ProgressOrder::AfterEvents;
                self.progress.response_received(revision, after_events, now);
                self.shared_progress.publish(self.progress.certain(now));
                for watch in self.pairing.covered_by_progress(revision) {
                    if std::mem::take(&mut watch.awaits_progress) {
                        watch.send(StreamUpdate::Progress { revision, order });
                    }
                }
            }
            ResponseTarget::Unknown { id } => self.send_cancel(id),
            ResponseTarget::Ignored => {}
            ResponseTarget::OutOfStep => self.fail(protocol_error(
                "the responses on the watch stream do not match the requests",
                &self.connection,
            )),
        }
        // Also if the watch was cancelled meanwhile: the next create waits for this response.
        if let Some(status) = create_status
            && !self.has_ended()
        {
            self.create_response_received(status);
        }
    }

    /// Sends the creates that waited for this response. Notifies the hub of the first response, which shows that the
    /// member is fit for more streams, and of the first created watch, whose id shows who chooses the ids.
    fn create_response_received(&mut self, status: CreateStatus) {
        if status > self.create_status {
            self.create_status = status;
            let id_source = self.pairing.id_source();
            if let Some(hub) = self.hub.upgrade() {
                hub.do_send(CreateResponseReceived {
                    endpoint: self.connection.id,
                    server_chooses_ids: match id_source {
                        IdSource::Unknown => None,
                        IdSource::Client => Some(false),
                        IdSource::Server => Some(true),
                    },
                });
            }
            if id_source == IdSource::Server {
                self.return_waiting();
            }
        }
        self.collect_creates();
        self.flush();
    }

    /// Returns the watches to the hub that start in the future: etcd responds to no progress request before that. A
    /// watch that was created on a member that lagged seems to start in the future as well, but does not prevent a
    /// response, so this is called only if there was none.
    pub(super) fn return_future_watches(&mut self) {
        let newest = self.newest_revision;
        let delaying = self
            .pairing
            .find_live(|watch| watch.delays_progress(newest));
        for id in delaying {
            if let Removed::Sent(watch) = self.pairing.cancel(id) {
                self.send_cancel(id);
                watch.send(StreamUpdate::StartsInFuture);
                self.forget(watch.watch);
            }
        }
    }

    /// Returns the watches to the hub that would wait long for the creates before theirs.
    fn return_waiting(&mut self) {
        for watch in self.pairing.take_waiting(SEQUENTIAL_WATCHES_PER_STREAM) {
            watch.send(StreamUpdate::StreamFull);
            self.forget(watch.watch);
        }
    }

    /// Cancels a watch whose actor stopped without removing it from the stream.
    fn cancel_if_stopped(&mut self, id: i64, connected: bool) {
        if !connected && let Removed::Sent(watch) = self.pairing.cancel(id) {
            self.send_cancel(id);
            self.forget(watch.watch);
        }
    }
}

/// Records events that are about to be sent to the watch.
fn record_events(watch: &StreamWatch, events: &[Event], now: Instant) {
    let last = events.iter().map(Event::revision).max().unwrap_or_default();
    let delivered = watch.buffer.delivered();
    watch
        .freshness
        .events_sent(watch.attempt, last, delivered, now);
}

fn requested_progress_order(connection: &Connection) -> ProgressOrder {
    let version = connection.health().status.and_then(|status| status.version);
    if version.is_some_and(ServerVersion::orders_requested_progress) {
        ProgressOrder::AfterEvents
    } else {
        ProgressOrder::Unknown
    }
}
