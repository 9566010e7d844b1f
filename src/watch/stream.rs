//! One Watch stream on one connection, shared by many watches.
//!
//! It is told [`Open`], [`Leave`], [`Ask`] and [`Close`] by the hub and [`Received`] by its own reader; it tells watches
//! [`Heard`] and the hub [`StreamAnswered`] and [`StreamEnded`]. A stream ends once: it tells every watch on it, and from
//! then on gives back whatever the hub still sends, until the hub says that nothing more comes.

mod handlers;
mod load;
mod reader;

use std::{collections::HashMap, sync::Arc, time::Duration};

use actix::{Actor, Addr, AsyncContext, Context, Message, Supervised, WeakAddr};

pub(crate) use load::Load;
use reader::{Reader, protocol};

use super::{
    Heard, News, Spec,
    actor::WatchActor,
    creates::{Answer, Creates, Envelope},
    hub::HubActor,
    queue::Queue,
};
use crate::{
    connection::{Connection, EndpointId, Standing, Suspicion, Verdict},
    error::{Error, ErrorKind, Outcome},
    proto::{WatchCancelRequest, WatchRequest, WatchResponse, watch_request::RequestUnion},
    supervisor::{crashes, supervise},
    transport::channel::{Metadata, StreamSender},
};

const PATH: &str = "/etcdserverpb.Watch/Watch";
/// Creates are answered at once; a member that takes longer is suspect.
const OVERDUE: Duration = Duration::from_secs(1);
/// A member that is well otherwise, but answers no create for that many times [`OVERDUE`], is left.
const PATIENCE: u32 = 2;

/// Create a watch on this stream.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Open {
    pub(crate) watch: u64,
    pub(crate) attachment: u32,
    pub(crate) address: Addr<WatchActor>,
    pub(crate) spec: Arc<Spec>,
    pub(crate) next_revision: i64,
    pub(crate) queue: Arc<Queue>,
}

/// Cancel a watch.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Leave {
    pub(crate) watch: u64,
}

/// Ask how far all watches of the stream have come.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Ask;

/// The hub has forgotten the stream: nothing follows.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Close;

/// Answers arrived, in order. Gives the queues that may be nearly full now.
#[derive(Message)]
#[rtype(result = "Vec<Arc<Queue>>")]
struct Received(Vec<WatchResponse>);

/// Nothing more will arrive.
#[derive(Message)]
#[rtype(result = "()")]
struct Broken(Error);

/// Send what has gathered.
#[derive(Message)]
#[rtype(result = "()")]
struct Flush;

/// Creates may be overdue.
#[derive(Message)]
#[rtype(result = "()")]
struct LookForOverdue;

/// The member answered for the first time on a stream. Told to the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StreamAnswered {
    pub(crate) endpoint: EndpointId,
}

/// A stream takes no more watches. Told to the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StreamEnded {
    pub(crate) stream: u64,
    pub(crate) endpoint: EndpointId,
    pub(crate) generation: u64,
    /// The connection is gone with it.
    pub(crate) connection_dead: bool,
    /// It broke before the member answered anything.
    pub(crate) fruitless: bool,
}

/// A watch on this stream.
struct Subscriber {
    watch: u64,
    attachment: u32,
    address: Addr<WatchActor>,
    queue: Arc<Queue>,
}

impl Subscriber {
    fn tell(&self, news: News) -> bool {
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

pub(crate) struct StreamActor {
    number: u64,
    hub: WeakAddr<HubActor>,
    connection: Arc<Connection>,
    /// Gone once the stream has ended.
    wire: Option<Wire>,
    /// Requests that go out together.
    outgoing: Vec<WatchRequest>,
    creates: Creates<Subscriber>,
    ids: HashMap<u64, i64>,
    load: Load,
    answers: u64,
    looking: bool,
    seen_answers: u64,
    overdue: u32,
    suspicion: Option<Suspicion>,
    /// Of the answers being handled: how many events, and the queues they may have crowded.
    events: usize,
    crowded: Vec<Arc<Queue>>,
    error: Option<Arc<Error>>,
    restarted: bool,
    doomed: bool,
}

struct Wire {
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
                    looking: false,
                    seen_answers: 0,
                    overdue: 0,
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

    fn send(&mut self, request: RequestUnion) {
        self.outgoing.push(WatchRequest {
            request_union: Some(request),
        });
        self.flush();
    }

    /// Sends what waits, in one piece: after a reconnect thousands of creates do, and a frame for each of them
    /// would cost more than the create.
    fn flush(&mut self) {
        let outgoing = std::mem::take(&mut self.outgoing);
        if !outgoing.is_empty()
            && let Some(wire) = self.wire.as_mut()
            && let Err(error) = wire.sender.send_all(&outgoing)
        {
            self.break_up(error);
        }
    }

    fn cancel(&mut self, watch_id: i64) {
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    }

    /// A watch is not on this stream any more.
    fn forget(&mut self, watch: u64) {
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
            });
        }
    }

    fn break_up(&mut self, error: Error) {
        if self.load.has_ended() {
            return;
        }
        tracing::debug!(endpoint = %self.connection.endpoint, %error, "watch stream broke");
        if error.kind() == ErrorKind::NoLeader {
            self.connection.doubt();
        }
        let verdict = self.connection.health().verdict;
        let dead = error.kind() == ErrorKind::ConnectionLost && error.code().is_none()
            || matches!(verdict, Verdict::Closed | Verdict::Unresponsive);
        self.end(dead, self.answers == 0);
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

    fn hear(&mut self, response: WatchResponse) {
        let (revision, cluster_id) = response
            .header
            .as_ref()
            .map_or((0, 0), |header| (header.revision, header.cluster_id));
        let endpoint = self.connection.id;
        let envelope = Envelope {
            watch_id: response.watch_id,
            created: response.created,
            canceled: response.canceled,
            compact_revision: response.compact_revision,
            revision,
        };
        let cancelled = |response: WatchResponse| News::Cancelled {
            endpoint,
            compact_revision: response.compact_revision,
            reason: response.cancel_reason,
        };
        match self.creates.answer(envelope) {
            Answer::Created { id, who } => {
                // An id that is not ours, from a proxy: the cancel has to name it.
                self.ids.insert(who.watch, id);
                let there = who.tell(News::Created {
                    revision,
                    cluster_id,
                });
                self.drop_orphan(id, there);
            }
            Answer::For { who } => {
                let news = if response.events.is_empty() {
                    News::Progress(revision)
                } else {
                    self.events += response.events.len();
                    // They are not in the queue yet, but all of them may be for it.
                    if who.queue.is_crowded_by(self.events) {
                        let last = self.crowded.last();
                        if !last.is_some_and(|last| Arc::ptr_eq(last, &who.queue)) {
                            self.crowded.push(who.queue.clone());
                        }
                    }
                    News::Events {
                        events: response.events,
                        fragment: response.fragment,
                    }
                };
                let there = who.tell(news);
                self.drop_orphan(response.watch_id, there);
            }
            Answer::Refused { who } => {
                who.tell(cancelled(response));
                self.forget(who.watch);
            }
            Answer::Canceled { id, who, forget } => {
                if forget {
                    self.cancel(id);
                }
                who.tell(cancelled(response));
                self.forget(who.watch);
            }
            Answer::Broadcast => {
                for who in self.creates.broadcast(revision) {
                    who.tell(News::Progress(revision));
                }
            }
            Answer::Unwanted { id } => self.cancel(id),
            Answer::Nobody => {}
            Answer::OutOfStep => self.break_up(
                protocol("the answers on the watch stream do not fit the requests")
                    .with_endpoint(self.connection.endpoint.name()),
            ),
        }
    }

    /// A watch whose actor is gone without a word is cancelled.
    fn drop_orphan(&mut self, id: i64, there: bool) {
        if !there && let Some(who) = self.creates.cancel(id) {
            self.cancel(id);
            self.forget(who.watch);
        }
    }

    fn look_for_overdue(&mut self, ctx: &mut Context<Self>) {
        self.looking = self.creates.unanswered() > 0 && self.wire.is_some();
        if !self.looking {
            self.suspicion = None;
            self.overdue = 0;
            return;
        }
        if self.seen_answers == self.answers {
            self.overdue += 1;
            if self.overdue > PATIENCE {
                let error = Error::new(
                    ErrorKind::MemberUnresponsive,
                    Outcome::Unknown,
                    "it answers, but creates no watch",
                );
                return self.break_up(error.with_endpoint(self.connection.endpoint.name()));
            }
            if self.suspicion.is_none() {
                self.suspicion = Some(self.connection.suspect());
            }
        } else {
            self.overdue = 0;
            self.suspicion = None;
        }
        self.seen_answers = self.answers;
        ctx.notify_later(LookForOverdue, OVERDUE);
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
