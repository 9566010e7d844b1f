//! Decides on which member, and on which of its shared streams, a watch lives.
//!
//! It is told [`Start`](super::Start) and [`Pump`](super::pump::Pump) by who opens a watch; [`Attach`],
//! [`Detach`](super::Detach) and [`AskProgress`](super::AskProgress) by watches; [`StreamAnswered`] and [`StreamEnded`]
//! by streams; [`Shutdown`](super::Shutdown) by the client. It tells streams [`Open`], [`Leave`],
//! [`Ask`](super::stream::Ask) and [`Close`], and watches [`HubRestarted`] and [`ShutDown`](super::actor::ShutDown);
//! where nobody is ready it asks the balancer [`AwaitReady`].
//!
//! Every watch has one place: none, in the queue for one, or on a stream. A watch that asks for a place gives up the one
//! it had. A stream that ends says so before any of its watches asks for a new place.
//!
//! [`StreamAnswered`]: super::stream::StreamAnswered
//! [`StreamEnded`]: super::stream::StreamEnded

mod handlers;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use actix::{Actor, Addr, AsyncContext, Context, Message, Supervised};
use tokio::{sync::oneshot, time::Instant};

use super::{
    Attach,
    actor::{HubRestarted, WatchActor},
    pacing::Pacing,
    stream::{Close, Leave, Load, Open, StreamActor},
};
use crate::{
    balancer::{ReadyEndpoints, messages::AwaitReady},
    call::Caller,
    connection::{Connection, EndpointId},
    runtime::supervisor::{crashes, supervise},
    transport::channel::Metadata,
};

/// Between two looks at members that say they are ready but take no stream.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_AGAIN_AT_MOST: Duration = Duration::from_millis(200);

pub(crate) struct HubActor {
    caller: Arc<Caller>,
    watches_per_stream: usize,
    last_watch: u64,
    last_stream: u64,
    watches: HashMap<u64, Entry>,
    streams: Vec<Stream>,
    waiting: Vec<Attach>,
    pacing: Pacing,
    /// Members that choose the ids of watches themselves, as proxies do: there each watch has a stream of its own.
    own_ids: HashSet<EndpointId>,
    /// Tasks that will say when to look at the members again.
    looking: Looking,
    looks: u32,
    restarted: bool,
}

struct Entry {
    address: Addr<WatchActor>,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Waiting,
    On(u64),
}

struct Stream {
    number: u64,
    endpoint: EndpointId,
    generation: u64,
    require_leader: bool,
    /// The generation of the token it was opened with.
    token: u64,
    load: Load,
    address: Addr<StreamActor>,
}

/// Who will be told that members may be ready.
#[derive(Default)]
struct Looking {
    /// Those who need a member with a leader.
    for_leader: bool,
    /// Those who can do without; that one may be found long before the other.
    for_any: bool,
}

/// Members may be ready now.
#[derive(Message)]
#[rtype(result = "()")]
struct LookAgain {
    /// Members without leader count.
    leaderless: bool,
}

/// Make every stream's actor panic at the next answer it gets.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashStreams;

impl HubActor {
    pub(crate) fn start(caller: Arc<Caller>, watches_per_stream: usize) -> Addr<Self> {
        supervise(
            "watch hub",
            |_| {},
            |_| Self {
                caller,
                watches_per_stream,
                last_watch: 0,
                last_stream: 0,
                watches: HashMap::new(),
                streams: Vec::new(),
                waiting: Vec::new(),
                pacing: Pacing::default(),
                own_ids: HashSet::new(),
                looking: Looking::default(),
                looks: 0,
                restarted: false,
            },
        )
    }

    fn place(&mut self, attach: Attach, ctx: &mut Context<Self>) {
        if let Some((number, address)) = self.find_stream(&attach, ctx) {
            self.set_place(attach.watch, Place::On(number));
            address.do_send(Open {
                watch: attach.watch,
                attachment: attach.attachment,
                address: attach.address,
                spec: attach.spec,
                next_revision: attach.next_revision,
                queue: attach.queue,
            });
        } else {
            self.set_place(attach.watch, Place::Waiting);
            let leaderless = !attach.spec.require_leader;
            self.waiting.push(attach);
            self.look_later(leaderless, ctx);
        }
    }

    fn set_place(&mut self, watch: u64, place: Place) {
        if let Some(entry) = self.watches.get_mut(&watch) {
            entry.place = place;
        }
    }

    /// A stream with room on the member the policy chooses. The watch has its place on it already.
    fn find_stream(
        &mut self,
        attach: &Attach,
        ctx: &mut Context<Self>,
    ) -> Option<(u64, Addr<StreamActor>)> {
        // Each round either finds a stream or takes a dead connection out of the choice.
        while let Some(connection) = self.pick(attach) {
            let token = self.caller.shared.token.generation();
            let together = if self.own_ids.contains(&connection.id) {
                1
            } else {
                self.watches_per_stream
            };
            let shared = self.streams.iter().rev().find(|stream| {
                (stream.endpoint, stream.generation) == (connection.id, connection.generation)
                    && stream.require_leader == attach.spec.require_leader
                    && stream.token == token
                    && stream.load.take(together)
            });
            if let Some(stream) = shared {
                return Some((stream.number, stream.address.clone()));
            }
            match self.open_stream(&connection, attach.spec.require_leader, ctx) {
                Ok(opened) => return Some(opened),
                Err(error) => {
                    tracing::debug!(endpoint = %connection.endpoint, %error, "no watch stream");
                    self.pacing.dead(connection.id, connection.generation);
                }
            }
        }
        None
    }

    fn pick(&self, attach: &Attach) -> Option<Arc<Connection>> {
        let set = self.caller.ready.load();
        let now = Instant::now();
        let usable = |connections: &[Arc<Connection>], leader: bool| -> Vec<Arc<Connection>> {
            let fit = |connection: &&Arc<Connection>| {
                // The snapshot may be a moment older than the verdict.
                (!leader || connection.health().verdict.is_fine())
                    && self
                        .pacing
                        .allows(connection.id, connection.generation, now)
            };
            connections.iter().filter(fit).cloned().collect()
        };
        let mut usable_now = usable(&set.ready, true);
        if usable_now.is_empty() && !attach.spec.require_leader {
            usable_now = usable(&set.leaderless, false);
        }
        let elsewhere = |connection: &Arc<Connection>| Some(connection.id) != attach.avoid;
        if usable_now.iter().any(elsewhere) {
            usable_now.retain(elsewhere);
        }
        if usable_now.is_empty() {
            return None;
        }
        let index = self.caller.policy.pick(&ReadyEndpoints::new(&usable_now));
        let index = if index < usable_now.len() { index } else { 0 };
        Some(usable_now.swap_remove(index))
    }

    fn open_stream(
        &mut self,
        connection: &Arc<Connection>,
        require_leader: bool,
        ctx: &mut Context<Self>,
    ) -> Result<(u64, Addr<StreamActor>), crate::error::Error> {
        self.last_stream += 1;
        let number = self.last_stream;
        let load = Load::default();
        // A stream keeps the token it was opened with, for every watch that is ever created on it.
        let token = self.caller.shared.token.load_without_waiting();
        let metadata = Metadata {
            require_leader,
            token: token.value,
            timeout: None,
        };
        let hub = ctx.address().downgrade();
        let address = StreamActor::start(number, connection.clone(), &metadata, hub, load.clone())?;
        load.take(usize::MAX);
        self.streams.push(Stream {
            number,
            endpoint: connection.id,
            generation: connection.generation,
            require_leader,
            token: token.generation,
            load,
            address: address.clone(),
        });
        Ok((number, address))
    }

    fn leave_stream(&mut self, watch: u64) {
        let Some(entry) = self.watches.get_mut(&watch) else {
            return;
        };
        match std::mem::replace(&mut entry.place, Place::Nowhere) {
            Place::Nowhere => {}
            Place::Waiting => self.waiting.retain(|attach| attach.watch != watch),
            Place::On(number) => {
                if let Some(stream) = self.stream(number) {
                    stream.address.do_send(Leave { watch });
                }
            }
        }
    }

    fn stream(&self, number: u64) -> Option<&Stream> {
        self.streams.iter().find(|stream| stream.number == number)
    }

    fn close_stream(&mut self, number: u64) {
        let found = self
            .streams
            .iter()
            .position(|stream| stream.number == number);
        if let Some(index) = found {
            self.streams.swap_remove(index).address.do_send(Close);
        }
    }

    /// Has somebody say when members may be ready: the balancer, or the clock where members are ready but rest.
    fn look_later(&mut self, leaderless: bool, ctx: &mut Context<Self>) {
        let looking = if leaderless {
            &mut self.looking.for_any
        } else {
            &mut self.looking.for_leader
        };
        if std::mem::replace(looking, true) {
            return;
        }
        let hub = ctx.address().downgrade();
        let set = self.caller.ready.load();
        let now = Instant::now();
        let growing = LOOK_AGAIN.saturating_mul(2u32.saturating_pow(self.looks));
        let pause = match self.pacing.next_allowed(now) {
            Some(allowed) => allowed - now,
            None => growing
                .min(LOOK_AGAIN_AT_MOST)
                .mul_f64(0.5 + 0.5 * fastrand::f64()),
        };
        self.looks = self.looks.saturating_add(1);
        let nobody = set.ready.is_empty() && (!leaderless || set.leaderless.is_empty());
        let told = (nobody && !set.closed).then(|| {
            let (ready, told) = oneshot::channel();
            self.caller
                .balancer
                .do_send(AwaitReady { ready, leaderless });
            told
        });
        actix_rt::spawn(async move {
            // A balancer that crashed drops the question: the pause keeps that from spinning.
            let answered = match told {
                Some(told) => told.await.is_ok(),
                None => false,
            };
            if !answered {
                tokio::time::sleep(pause).await;
            }
            if let Some(hub) = hub.upgrade() {
                hub.do_send(LookAgain { leaderless });
            }
        });
    }
}

impl Actor for HubActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::take(&mut self.restarted) {
            return;
        }
        // One message was lost. Streams that ended are cleared away, watches without a place ask again, and
        // those that ended leave the server.
        let ended: Vec<u64> = self
            .streams
            .iter()
            .filter(|stream| stream.load.has_ended())
            .map(|stream| stream.number)
            .collect();
        for number in ended {
            self.close_stream(number);
        }
        let gone: Vec<u64> = self
            .watches
            .iter()
            .filter(|(_, entry)| !entry.address.connected())
            .map(|(watch, _)| *watch)
            .collect();
        for watch in gone {
            self.leave_stream(watch);
            self.watches.remove(&watch);
        }
        for entry in self.watches.values() {
            entry.address.do_send(HubRestarted);
        }
        self.looking = Looking::default();
        for leaderless in [false, true] {
            let waits = |attach: &Attach| attach.spec.require_leader != leaderless;
            if self.waiting.iter().any(waits) {
                self.look_later(leaderless, ctx);
            }
        }
    }
}

impl Supervised for HubActor {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.restarted = true;
    }
}

crashes!(HubActor);
