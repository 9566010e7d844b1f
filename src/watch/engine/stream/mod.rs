//! One Watch stream on one connection, shared by many watches.
//!
//! It is told [`Open`], [`Leave`], [`Ask`] and [`Close`] by the hub, [`Received`] and [`Broken`] by its own reader; it
//! tells watches [`Heard`](super::Heard) and the hub [`StreamAnswered`] and [`StreamEnded`]. A stream ends once: it
//! tells every watch on it, and from then on gives back whatever the hub still sends, until the hub says that nothing
//! more comes.
//!
//! Its [`actor`] sends and ends, [`answers`] go to the watches they are about, the [`reader`] is a task of its own.

mod actor;
mod answers;
mod handlers;
mod load;
mod overdue;
mod reader;

use std::sync::Arc;

use actix::{Addr, Message};

use super::{Spec, actor::WatchActor, queue::Queue};
use crate::{connection::EndpointId, error::Error, proto::WatchResponse};

pub(crate) use actor::StreamActor;
pub(crate) use load::Load;

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
struct Broken {
    error: Error,
    /// The id of the watch whose answer was too large to be taken.
    too_large_for: Option<i64>,
}

/// Send what has gathered.
#[derive(Message)]
#[rtype(result = "()")]
struct Flush;

/// Creates may be overdue.
#[derive(Message)]
#[rtype(result = "()")]
struct LookForOverdue;

/// The member answered a create, for the first time on a stream. Told to the hub.
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
    /// It broke before the member answered any create.
    pub(crate) fruitless: bool,
    /// The server chooses the ids of watches itself: they can't share a stream.
    pub(crate) own_ids: bool,
}
