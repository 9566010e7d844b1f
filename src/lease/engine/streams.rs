//! The keepalive streams, one a connection, and what is in flight on them.
//!
//! A member handles the keepalives of a stream one by one and answers in their order, so a queue tells which answer
//! belongs to what. One that hangs holds up all behind it: a silent stream is given up as a whole.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Handler, Message, WeakAddr};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    Answered, StreamEnded,
    keeper::KeeperActor,
    places::{Place, Renewal},
};
use crate::{
    auth::engine::Token,
    connection::{Connection, EndpointId, MemberHealth, StreamRegistration},
    error::Error,
    proto::{LeaseKeepAliveRequest, LeaseKeepAliveResponse},
    transport::channel::{Metadata, StreamReceiver, StreamSender},
};

pub(crate) const PATH: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
/// A stream nobody used for that long is closed.
const IDLE: Duration = Duration::from_secs(30);
/// Answers handed over at once, at the most.
const BATCH: usize = 512;

/// One keepalive stream.
pub(crate) struct KeepaliveStream {
    /// Its number: what is said of an older one is ignored.
    pub(crate) number: u64,
    pub(crate) connection: Arc<Connection>,
    /// The token it was opened with.
    pub(crate) token: Token,
    sender: StreamSender<LeaseKeepAliveRequest>,
    batch: Vec<LeaseKeepAliveRequest>,
    owed: VecDeque<Owed>,
    last_answer: Instant,
    last_use: Instant,
    _reader: AbortOnDrop,
    _registration: StreamRegistration,
}

/// A keepalive without an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owed {
    pub(crate) lease: i64,
    /// Of a lease that is kept.
    pub(crate) place: Option<Place>,
    pub(crate) sent_at: Instant,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl KeepaliveStream {
    pub(crate) fn open(
        number: u64,
        connection: &Arc<Connection>,
        token: Token,
        keeper: WeakAddr<KeeperActor>,
        now: Instant,
    ) -> Result<Self, Error> {
        let metadata = Metadata {
            require_leader: true,
            token: token.value.clone(),
            timeout: None,
        };
        let (sender, receiver) = connection.channel.stream(PATH, &metadata)?;
        let health = connection.watch_health();
        let reader = actix_rt::spawn(read(number, receiver, health, keeper));
        Ok(Self {
            number,
            connection: connection.clone(),
            token,
            sender,
            batch: Vec::new(),
            owed: VecDeque::new(),
            last_answer: now,
            last_use: now,
            _reader: AbortOnDrop(reader),
            _registration: connection.register_stream(),
        })
    }

    pub(crate) fn is_on(&self, connection: &Connection) -> bool {
        self.connection.id == connection.id && self.connection.generation == connection.generation
    }

    pub(crate) fn endpoint(&self) -> EndpointId {
        self.connection.id
    }

    /// Puts a keepalive into the next batch.
    pub(crate) fn add(&mut self, renewal: &Renewal, now: Instant) {
        self.batch.push(LeaseKeepAliveRequest { id: renewal.lease });
        self.owed.push_back(Owed {
            lease: renewal.lease,
            place: renewal.place,
            sent_at: now,
        });
        self.last_use = now;
    }

    /// Sends the batch in one piece.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let sent = self.sender.send_all(&self.batch);
        self.batch.clear();
        sent
    }

    /// Which keepalive an answer belongs to. What is passed over gets no answer any more.
    pub(crate) fn answered(
        &mut self,
        lease: i64,
        now: Instant,
        mut passed_over: impl FnMut(Owed),
    ) -> Option<Owed> {
        self.last_answer = now;
        if self.owed.front().is_none_or(|owed| owed.lease != lease) {
            let place = self.owed.iter().position(|owed| owed.lease == lease)?;
            self.owed.drain(..place).for_each(&mut passed_over);
        }
        self.owed.pop_front()
    }

    /// What was not answered yet, the oldest first.
    pub(crate) fn owed(&self) -> impl Iterator<Item = &Owed> {
        self.owed.iter()
    }

    /// Whether it owes an answer for that long, and gave none to anything in that time.
    pub(crate) fn is_silent(&self, patience: Duration, now: Instant) -> bool {
        let waits = |since: Instant| now.saturating_duration_since(since) >= patience;
        let owes = self.owed.front().is_some_and(|owed| waits(owed.sent_at));
        owes && waits(self.last_answer)
    }

    /// When it is closed if nobody uses it until then. What it still owes was given up long before.
    pub(crate) fn idle_at(&self) -> Instant {
        self.last_use + IDLE
    }

    pub(crate) fn owes_nothing(&self) -> bool {
        self.owed.is_empty()
    }

    pub(crate) fn finish(self) {
        self.sender.finish();
    }

    /// Gives it up: the stream is reset, what it owes will not come.
    pub(crate) fn give_up(self) -> VecDeque<Owed> {
        self.owed
    }
}

/// Reads a stream until it ends or its connection is not fine any more.
async fn read(
    stream: u64,
    mut receiver: StreamReceiver<LeaseKeepAliveResponse>,
    mut health: watch::Receiver<MemberHealth>,
    keeper: WeakAddr<KeeperActor>,
) {
    let error = loop {
        let first = tokio::select! {
            biased;
            answer = receiver.next() => answer,
            () = not_fine(&mut health) => break None,
        };
        let mut answers = Vec::new();
        let mut next = first;
        let end = loop {
            match next {
                Ok(Some(answer)) => answers.push((answer.id, answer.ttl)),
                Ok(None) => break Some(None),
                Err(failure) => break Some(Some(failure.error)),
            }
            if answers.len() >= BATCH {
                break None;
            }
            // What is here already goes along.
            next = tokio::select! {
                biased;
                answer = receiver.next() => answer,
                () = std::future::ready(()) => break None,
            };
        };
        if !answers.is_empty() && !tell(&keeper, Answered { stream, answers }) {
            return;
        }
        if let Some(error) = end {
            break error;
        }
    };
    tell(&keeper, StreamEnded { stream, error });
}

async fn not_fine(health: &mut watch::Receiver<MemberHealth>) {
    // The connection itself has the other end for as long as the stream has the connection.
    let _ = health.wait_for(|health| !health.verdict.is_fine()).await;
}

fn tell<M>(keeper: &WeakAddr<KeeperActor>, message: M) -> bool
where
    M: Message + Send + 'static,
    M::Result: Send,
    KeeperActor: Handler<M>,
{
    let keeper = keeper.upgrade();
    if let Some(keeper) = &keeper {
        keeper.do_send(message);
    }
    keeper.is_some()
}
