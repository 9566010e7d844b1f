//! The actor of a stream: what it sends, and how it ends.

use std::{collections::HashMap, sync::Arc};

use actix::{Actor, Addr, AsyncContext, Context, Supervised, WeakAddr};

use super::{
    Load, LookForOverdue, StreamEnded,
    overdue::{self, Look, Overdue},
    reader::Reader,
};
use crate::{
    connection::{Connection, Standing, Suspicion, Verdict},
    error::{Error, ErrorKind, Outcome},
    proto::{WatchCancelRequest, WatchRequest, WatchResponse, watch_request::RequestUnion},
    runtime::supervisor::{crashes, supervise},
    transport::channel::{Metadata, StreamSender, is_stream_error},
    watch::engine::{
        Heard, News, actor::WatchActor, creates::Creates, hub::HubActor, queue::Queue,
    },
};

const PATH: &str = "/etcdserverpb.Watch/Watch";

/// A watch on this stream.
pub(super) struct Subscriber {
    pub(super) watch: u64,
    pub(super) attachment: u32,
    pub(super) address: Addr<WatchActor>,
    pub(super) queue: Arc<Queue>,
}

impl Subscriber {
    pub(super) fn tell(&self, news: News) -> bool {
        let heard = Heard {
            attachment: self.attachment,
            news,
        };
        let there = self.address.connected();
        if there {
            self.address.do_send(heard);
        }
        there
    }
}

/// What the member makes of creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Creating {
    Unanswered,
    Answered,
    /// It chooses the ids of watches itself.
    OwnIds,
}

pub(crate) struct StreamActor {
    number: u64,
    pub(super) hub: WeakAddr<HubActor>,
    pub(super) connection: Arc<Connection>,
    /// Gone once the stream has ended.
    pub(super) wire: Option<Wire>,
    /// Requests that go out together.
    pub(super) outgoing: Vec<WatchRequest>,
    pub(super) creates: Creates<Subscriber>,
    pub(super) ids: HashMap<u64, i64>,
    pub(super) load: Load,
    pub(super) answers: u64,
    pub(super) creating: Creating,
    /// While creates are under way and looked after.
    pub(super) overdue: Option<Overdue>,
    suspicion: Option<Suspicion>,
    /// Of the answers being handled: how many events, and the queues they may have crowded.
    pub(super) events: usize,
    pub(super) crowded: Vec<Arc<Queue>>,
    pub(super) error: Option<Arc<Error>>,
    restarted: bool,
    pub(super) doomed: bool,
}

pub(super) struct Wire {
    sender: StreamSender<WatchRequest>,
    _reader: Reader,
    _standing: Standing,
}

impl StreamActor {
    /// Opens a stream and starts its actor on the current arbiter.
    pub(crate) fn start(
        number: u64,
        connection: Arc<Connection>,
        metadata: &Metadata,
        hub: WeakAddr<HubActor>,
        load: Load,
    ) -> Result<Addr<Self>, Error> {
        let (sender, receiver) = connection
            .channel
            .stream::<WatchRequest, WatchResponse>(PATH, metadata)?;
        let leader_wanted = metadata.require_leader;
        Ok(supervise(
            "watch stream",
            |_| {},
            move |ctx| {
                let (reading, actor) = (connection.clone(), ctx.address().downgrade());
                let wire = Wire {
                    sender,
                    _reader: Reader::start(receiver, actor, reading, leader_wanted),
                    _standing: connection.stand(),
                };
                Self {
                    number,
                    hub,
                    connection,
                    wire: Some(wire),
                    outgoing: Vec::new(),
                    creates: Creates::default(),
                    ids: HashMap::new(),
                    load,
                    answers: 0,
                    creating: Creating::Unanswered,
                    overdue: None,
                    suspicion: None,
                    events: 0,
                    crowded: Vec::new(),
                    error: None,
                    restarted: false,
                    doomed: false,
                }
            },
        ))
    }

    pub(super) fn send(&mut self, request: RequestUnion) {
        self.outgoing.push(WatchRequest {
            request_union: Some(request),
        });
        self.flush();
    }

    /// Sends what waits, in one piece: after a reconnect thousands of creates do, and a frame for each of them
    /// would cost more than the create.
    pub(super) fn flush(&mut self) {
        let outgoing = std::mem::take(&mut self.outgoing);
        if !outgoing.is_empty()
            && let Some(wire) = self.wire.as_mut()
            && let Err(error) = wire.sender.send_all(&outgoing)
        {
            self.break_up(error);
        }
    }

    pub(super) fn cancel(&mut self, watch_id: i64) {
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    }

    /// A watch is not on this stream any more.
    pub(super) fn forget(&mut self, watch: u64) {
        self.ids.remove(&watch);
        if self.load.leave() {
            self.end(false, false);
        }
    }

    /// Ends the stream: its halves are dropped, and the hub hears of it before any watch asks for a new place.
    fn end(&mut self, connection_dead: bool, fruitless: bool) {
        self.load.end();
        self.suspicion = None;
        if let Some(wire) = self.wire.take() {
            wire.sender.finish();
        }
        if let Some(hub) = self.hub.upgrade() {
            hub.do_send(StreamEnded {
                stream: self.number,
                endpoint: self.connection.id,
                generation: self.connection.generation,
                connection_dead,
                fruitless,
                own_ids: self.creating == Creating::OwnIds,
            });
        }
    }

    pub(super) fn break_up(&mut self, error: Error) {
        if self.load.has_ended() {
            return;
        }
        tracing::debug!(endpoint = %self.connection.endpoint, %error, "watch stream broke");
        if error.kind() == ErrorKind::NoLeader {
            self.connection.doubt();
        }
        let verdict = self.connection.health().verdict;
        let lost = error.kind() == ErrorKind::ConnectionLost && error.code().is_none();
        let dead = lost && !is_stream_error(&error)
            || matches!(verdict, Verdict::Closed | Verdict::Unresponsive);
        self.end(dead, self.creating == Creating::Unanswered);
        let error = Arc::new(error);
        self.ids.clear();
        for watch in std::mem::take(&mut self.creates).into_watches() {
            watch.tell(News::Broken {
                endpoint: self.connection.id,
                error: error.clone(),
            });
        }
        self.error = Some(error);
    }

    /// Looks at the creates under way, and again later for as long as there are any.
    pub(super) fn look_for_overdue(&mut self, ctx: &mut Context<Self>) {
        let oldest = self.creates.oldest_unanswered();
        let Some(oldest) = oldest.filter(|_| self.wire.is_some()) else {
            self.overdue = None;
            self.suspicion = None;
            return;
        };
        let overdue = self.overdue.get_or_insert_default();
        match overdue.look(oldest, self.answers) {
            Look::Fine => self.suspicion = None,
            Look::Suspect if self.suspicion.is_some() => {}
            Look::Suspect => self.suspicion = Some(self.connection.suspect()),
            Look::GiveUp => {
                let error = Error::new(
                    ErrorKind::MemberUnresponsive,
                    Outcome::Unknown,
                    "it answers, but creates no watch",
                );
                return self.break_up(error.with_endpoint(self.connection.endpoint.name()));
            }
        }
        ctx.notify_later(LookForOverdue, overdue::LOOK);
    }
}

impl Actor for StreamActor {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Context<Self>) {
        if std::mem::take(&mut self.restarted) {
            // What was being handled is lost: an answer, perhaps a create. The cursors know where to go on.
            self.break_up(Error::new(
                ErrorKind::Internal,
                Outcome::Unknown,
                "the watch stream's actor panicked",
            ));
        }
    }
}

impl Supervised for StreamActor {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.restarted = true;
    }
}

crashes!(StreamActor);
