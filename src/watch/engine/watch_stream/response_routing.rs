//! Routes each response to the watch it belongs to.

use std::sync::Arc;

use super::{StreamActor, actor::CreateStatus, create_pairing::ResponseTarget, protocol_error};
use crate::{
    proto::WatchResponse,
    watch::engine::{
        event_buffer::EventBuffer, hub::CreateResponseReceived, watch_actor::StreamUpdate,
    },
};

/// Effects of one batch of responses on the buffers of its watches.
#[derive(Default)]
pub(super) struct BatchEffects {
    events: usize,
    /// Buffers that may be nearly full once their watches have handled the batch.
    pub(super) nearly_full: Vec<Arc<EventBuffer>>,
}

impl BatchEffects {
    fn add_events(&mut self, events: usize, buffer: &Arc<EventBuffer>) {
        self.events += events;
        // The events are not in the buffer yet, but all events of the batch may be for it.
        if buffer.is_nearly_full_with(self.events) {
            let last = self.nearly_full.last();
            if !last.is_some_and(|last| Arc::ptr_eq(last, buffer)) {
                self.nearly_full.push(buffer.clone());
            }
        }
    }
}

impl StreamActor {
    pub(super) fn route(&mut self, response: WatchResponse, effects: &mut BatchEffects) {
        let (revision, cluster_id) = response
            .header
            .as_ref()
            .map_or((0, 0), |header| (header.revision, header.cluster_id));
        let endpoint = self.connection.id;
        let cancelled = |response: WatchResponse| StreamUpdate::Cancelled {
            endpoint,
            compact_revision: response.compact_revision,
            reason: response.cancel_reason,
        };
        match self.pairing.pair(&response) {
            ResponseTarget::Created { id, watch } => {
                // A proxy may have chosen another id, and a cancel has to name that one.
                self.ids.insert(watch.watch, id);
                let connected = watch.send(StreamUpdate::Created {
                    revision,
                    cluster_id,
                });
                self.cancel_if_stopped(id, connected);
                self.create_response_received();
            }
            ResponseTarget::Watch { watch } => {
                let update = if response.events.is_empty() {
                    StreamUpdate::Progress(revision)
                } else {
                    effects.add_events(response.events.len(), &watch.buffer);
                    StreamUpdate::Events {
                        events: response.events,
                        fragment: response.fragment,
                    }
                };
                let connected = watch.send(update);
                self.cancel_if_stopped(response.watch_id, connected);
            }
            ResponseTarget::Refused { watch } => {
                watch.send(cancelled(response));
                self.create_response_received();
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
                watch.send(cancelled(response));
                self.forget(watch.watch);
            }
            ResponseTarget::Stream => {
                for watch in self.pairing.covered_by_progress(revision) {
                    watch.send(StreamUpdate::Progress(revision));
                }
            }
            ResponseTarget::Unknown { id } => self.send_cancel(id),
            ResponseTarget::Ignored => {}
            ResponseTarget::AmbiguousId => {
                self.create_status = CreateStatus::ServerChoosesIds;
                self.fail(protocol_error(
                    "the server chooses watch ids itself while several creates are in flight",
                    &self.connection,
                ));
            }
            ResponseTarget::OutOfStep => self.fail(protocol_error(
                "the responses on the watch stream do not match the requests",
                &self.connection,
            )),
        }
    }

    /// Notifies the hub of the first response to a create: the member is fit for more streams.
    fn create_response_received(&mut self) {
        if self.create_status == CreateStatus::NoResponse
            && let Some(hub) = self.hub.upgrade()
        {
            self.create_status = CreateStatus::Responded;
            hub.do_send(CreateResponseReceived {
                endpoint: self.connection.id,
            });
        }
    }

    /// Cancels a watch whose actor stopped without removing it from the stream.
    fn cancel_if_stopped(&mut self, id: i64, connected: bool) {
        if !connected && let Some(watch) = self.pairing.cancel(id) {
            self.send_cancel(id);
            self.forget(watch.watch);
        }
    }
}
