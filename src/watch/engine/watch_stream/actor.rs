//! The actor of a stream: what it sends, and how it ends.

use std::{collections::HashMap, sync::Arc, time::Duration};

use actix::{Actor, Addr, AsyncContext, Context, Supervised, WeakAddr};

use super::{
    create_pairing::CreatePairing,
    create_timeout::{self, CreateCheck, CreateTimeout},
    messages::{CheckCreates, StreamSharing},
    progress_log::ProgressLog,
    response_reader,
    watch_count::WatchCount,
};
use crate::runtime::supervisor::crashes;
use crate::{
    connection::{Connection, StreamRegistration, SuspicionGuard, Verdict},
    error::{Error, ErrorKind, Outcome},
    proto::{WatchCancelRequest, WatchRequest, WatchResponse, rpc, watch_request::RequestUnion},
    runtime::{abort_on_drop::AbortOnDrop, supervisor::supervise},
    transport::channel::{Metadata, StreamSender, is_stream_error},
    watch::engine::{
        event_buffer::EventBuffer,
        freshness_record::{LegFreshness, StreamProgress},
        hub::{HubActor, StreamEndReason, WatchStreamEnded},
        watch_actor::{StreamUpdate, UpdateReceived, WatchActor},
        watch_spec::WatchSpec,
    },
};

/// A watch on this stream.
pub(super) struct StreamWatch {
    pub(super) watch: u64,
    /// Attach attempt of the watch. The watch ignores updates for older attempts.
    pub(super) attempt: u32,
    pub(super) address: Addr<WatchActor>,
    pub(super) spec: Arc<WatchSpec>,
    pub(super) start_revision: i64,
    pub(super) sharing: StreamSharing,
    pub(super) buffer: Arc<EventBuffer>,
    pub(super) freshness: LegFreshness,
    /// Number of the last progress request before the watch was created; `None` until then.
    pub(super) created_after: Option<u64>,
    /// Whether the watch waits for progress.
    pub(super) awaits_progress: bool,
}

impl StreamWatch {
    /// Sends an update to the watch's actor; returns `false` if the actor has stopped.
    pub(super) fn send(&self, update: StreamUpdate) -> bool {
        let connected = self.address.connected();
        if connected {
            self.address.do_send(UpdateReceived {
                attempt: self.attempt,
                update,
            });
        }
        connected
    }

    /// Returns whether the watch starts after the revision that follows `current_revision`, on a shared stream. One
    /// that starts at that revision does so with the next write.
    pub(super) fn delays_progress(&self, current_revision: i64) -> bool {
        self.sharing == StreamSharing::Shared
            && self.start_revision > current_revision.saturating_add(1)
    }
}

/// How the member has responded to creates on this stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CreateStatus {
    /// No response yet.
    NoResponse,
    /// The member has refused all creates so far.
    Refused,
    /// The member has created a watch.
    Created,
}

pub(super) enum StreamState {
    /// The stream carries watches. Goes to `Ended` on any failure, or when the last watch leaves.
    Open(StreamHalves),
    /// The stream accepts no more watches. `error` is `None` if the last watch left. Final.
    Ended { error: Option<Arc<Error>> },
}

/// Both halves of an open stream. Dropping them resets the stream, unless the sender was finished.
pub(super) struct StreamHalves {
    sender: StreamSender<WatchRequest>,
    _reader: AbortOnDrop,
    _registration: StreamRegistration,
}

pub(crate) struct StreamActor {
    number: u64,
    pub(super) hub: WeakAddr<HubActor>,
    pub(super) connection: Arc<Connection>,
    pub(super) state: StreamState,
    /// Requests to send together.
    pub(super) outgoing: Vec<WatchRequest>,
    /// The watches are boxed, so that the table has little room for watches that the stream does not have.
    pub(super) pairing: CreatePairing<Box<StreamWatch>>,
    /// Watch id on the stream, by id of the watch.
    pub(super) ids: HashMap<u64, i64>,
    pub(super) watch_count: WatchCount,
    /// Newest revision of any response.
    pub(super) newest_revision: i64,
    /// Number of responses received.
    pub(super) responses: u64,
    pub(super) create_status: CreateStatus,
    pub(super) progress: ProgressLog,
    pub(super) shared_progress: Arc<StreamProgress>,
    /// Interval of progress requests; `None` if they are disabled.
    pub(super) progress_interval: Option<Duration>,
    /// `Some` while creates are in flight.
    pub(super) create_timeout: Option<CreateTimeout>,
    suspicion: Option<SuspicionGuard>,
    restarted: bool,
    #[cfg(feature = "test-faults")]
    pub(super) crash_on_next: bool,
}

impl StreamActor {
    /// Opens a stream and starts its actor on the current arbiter. Fails if the connection accepts no stream.
    pub(crate) fn start(
        number: u64,
        connection: Arc<Connection>,
        metadata: &Metadata,
        hub: WeakAddr<HubActor>,
        watch_count: WatchCount,
        progress_interval: Option<Duration>,
    ) -> Result<Addr<Self>, Error> {
        let (sender, receiver) = connection
            .channel
            .stream::<WatchRequest, WatchResponse>(rpc::WATCH.path, metadata)?;
        let leader_required = metadata.require_leader;
        Ok(supervise(
            "watch stream",
            |_| {},
            move |ctx| {
                let actor = ctx.address().downgrade();
                let reader =
                    response_reader::spawn(receiver, actor, connection.clone(), leader_required);
                let stream = StreamHalves {
                    sender,
                    _reader: reader,
                    _registration: connection.register_stream(),
                };
                let shared_progress =
                    StreamProgress::new(connection.endpoint.clone(), connection.watch_health());
                Self {
                    number,
                    hub,
                    connection,
                    state: StreamState::Open(stream),
                    outgoing: Vec::new(),
                    pairing: CreatePairing::default(),
                    ids: HashMap::new(),
                    watch_count,
                    newest_revision: 0,
                    responses: 0,
                    create_status: CreateStatus::NoResponse,
                    progress: ProgressLog::default(),
                    shared_progress: Arc::new(shared_progress),
                    progress_interval,
                    create_timeout: None,
                    suspicion: None,
                    restarted: false,
                    #[cfg(feature = "test-faults")]
                    crash_on_next: false,
                }
            },
        ))
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, StreamState::Ended { .. })
    }

    pub(super) fn send(&mut self, request: RequestUnion) {
        self.outgoing.push(WatchRequest {
            request_union: Some(request),
        });
        self.flush();
    }

    /// Sends the collected requests together: a reconnect collects thousands of creates, and one frame per create would
    /// cost more than the create.
    pub(super) fn flush(&mut self) {
        let outgoing = std::mem::take(&mut self.outgoing);
        if !outgoing.is_empty()
            && let StreamState::Open(stream) = &mut self.state
            && let Err(error) = stream.sender.send_all(&outgoing)
        {
            self.fail(error);
        }
    }

    /// Collects the creates that may be sent now.
    pub(super) fn collect_creates(&mut self) {
        while let Some(create) = self.pairing.next_to_send() {
            let spec = &create.watch.spec;
            let request = spec.create_request(create.id, create.start_revision);
            self.outgoing.push(WatchRequest {
                request_union: Some(RequestUnion::CreateRequest(request)),
            });
        }
    }

    pub(super) fn send_cancel(&mut self, watch_id: i64) {
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    }

    /// Removes a watch that left the stream. Ends the stream if it was the last watch.
    pub(super) fn forget(&mut self, watch: u64) {
        self.ids.remove(&watch);
        if self.watch_count.remove() {
            self.end(StreamEndReason::Unused, None);
        }
    }

    /// Closes the stream and notifies the hub. The hub has to receive this before any watch requests a new stream.
    fn end(&mut self, reason: StreamEndReason, error: Option<Arc<Error>>) {
        self.watch_count.close();
        self.suspicion = None;
        let ended = StreamState::Ended { error };
        if let StreamState::Open(stream) = std::mem::replace(&mut self.state, ended) {
            stream.sender.finish();
        }
        if let Some(hub) = self.hub.upgrade() {
            hub.do_send(WatchStreamEnded {
                stream: self.number,
                endpoint: self.connection.id,
                generation: self.connection.generation,
                reason,
            });
        }
    }

    /// Ends the stream after a failure and notifies its watches.
    pub(super) fn fail(&mut self, error: Error) {
        if self.has_ended() {
            return;
        }
        tracing::debug!(endpoint = %self.connection.endpoint, %error, "watch stream failed");
        if error.kind() == ErrorKind::NoLeader {
            self.connection.request_probe();
        }
        let verdict = self.connection.health().verdict;
        let lost = error.kind() == ErrorKind::ConnectionLost && error.code().is_none();
        let connection_died = lost && !is_stream_error(&error)
            || matches!(verdict, Verdict::Closed | Verdict::Unresponsive);
        let reason = match self.create_status {
            _ if connection_died => StreamEndReason::ConnectionDied,
            CreateStatus::NoResponse => StreamEndReason::NoCreateResponse,
            CreateStatus::Refused | CreateStatus::Created => StreamEndReason::Failed,
        };
        // A watch sends no writes, so none can have been applied.
        let error = Arc::new(error.with_outcome(Outcome::NotSent));
        self.end(reason, Some(error.clone()));
        self.ids.clear();
        for watch in std::mem::take(&mut self.pairing).into_watches() {
            watch.send(StreamUpdate::StreamFailed {
                endpoint: self.connection.id,
                error: error.clone(),
                bookmark: self.bookmark(&watch),
            });
        }
    }

    /// Checks the creates in flight, and again after an interval for as long as there are any.
    pub(super) fn check_creates(&mut self, ctx: &mut Context<Self>) {
        let oldest = self.pairing.oldest_in_flight();
        let Some(oldest) = oldest.filter(|_| !self.has_ended()) else {
            self.create_timeout = None;
            self.suspicion = None;
            return;
        };
        let timeout = self.create_timeout.get_or_insert_default();
        match timeout.check(oldest, self.responses) {
            CreateCheck::Advancing => self.suspicion = None,
            CreateCheck::Suspect if self.suspicion.is_some() => {}
            CreateCheck::Suspect => self.suspicion = Some(self.connection.suspect()),
            CreateCheck::GiveUp => {
                let error = Error::new(
                    ErrorKind::MemberUnresponsive,
                    Outcome::NotSent,
                    "the member did not respond to the request to create a watch",
                );
                return self.fail(error.with_endpoint(self.connection.endpoint.name()));
            }
        }
        ctx.notify_later(CheckCreates, create_timeout::CHECK_INTERVAL);
    }
}

impl Actor for StreamActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if std::mem::take(&mut self.restarted) {
            // The panic lost a message, perhaps events or a create. The watches resume from their cursors.
            self.fail(Error::new(
                ErrorKind::Internal,
                Outcome::NotSent,
                "the watch stream's actor panicked",
            ));
        } else {
            self.schedule_progress_request(ctx);
        }
    }
}

impl Supervised for StreamActor {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.restarted = true;
    }
}

crashes!(StreamActor);
