//! Watches: one logical watch over any number of streams, nothing lost, nothing twice.
//!
//! Three kinds of actors. The [`hub`], one a client, decides on which member and on which shared stream a watch lives.
//! A [`stream`] is one Watch stream on one connection: it sends creates without waiting for each other and hands every
//! answer to the watch it is about. A [`WatchActor`](actor::WatchActor), one a watch, owns the cursor and fills the
//! bounded [`queue`] its consumer reads.
//!
//! ```text
//! Start, Attach, Detach, AskProgress        Open, Leave, Close
//! consumer ── WatchActor ──────────▶ hub ──────────────────▶ StreamActor ── h2
//!                  ▲                                              │
//!                  └──────────────── Heard ◀──────────────────────┘
//! ```
//!
//! Every attempt to attach has a number. What a stream says to an older one is ignored, so a watch that moved, lagged
//! or crashed can't hear its past. A stream that breaks tells all its watches; each asks the hub for a new place and
//! says the revision it goes on from.
//!
//! What is decided here, apart from actors and sockets:
//! - [`cursor`]: which events of a stream are new, complete and in order, and where to resume.
//! - [`cancel`]: what a cancelled watch may still do.
//! - [`creates`]: which watch of a shared stream an answer is about.
//! - [`events`]: the events of a busy watch, straight from the wire.
//! - [`resync`]: what changed in a range while its history was compacted away.
//! - [`pacing`]: which connections are worth a stream now.

use std::{sync::Arc, time::Duration};

use actix::{Addr, Message};
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{
    connection::EndpointId,
    error::Error,
    proto::{Event, WatchCreateRequest},
};

pub(crate) mod actor;
pub(crate) mod cancel;
pub(crate) mod creates;
pub(crate) mod cursor;
pub(crate) mod events;
pub(crate) mod hub;
pub(crate) mod pacing;
pub(crate) mod pump;
pub(crate) mod queue;
pub(crate) mod reread;
pub(crate) mod resync;
pub(crate) mod service;
pub(crate) mod stream;

use actor::WatchActor;
use queue::Queue;
use resync::Known;

/// What a watch asks for, from its first stream to its last.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
pub(crate) struct Spec {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
    pub(crate) filters: Vec<i32>,
    pub(crate) prev_kv: bool,
    pub(crate) progress_notify: bool,
    pub(crate) fragment: bool,
    pub(crate) require_leader: bool,
    /// Tell the consumer of disconnects, resumes and lags.
    pub(crate) status_events: bool,
    pub(crate) resync: bool,
    pub(crate) max_outage: Option<Duration>,
}

impl Spec {
    /// The create for a stream.
    fn create(&self, watch_id: i64, start_revision: i64) -> WatchCreateRequest {
        WatchCreateRequest {
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            start_revision,
            progress_notify: self.progress_notify,
            filters: self.filters.clone(),
            prev_kv: self.prev_kv,
            watch_id,
            fragment: self.fragment,
        }
    }
}

/// Start the actor of a new watch, and tell its number and address. Told to the hub.
#[derive(Message)]
#[rtype(result = "(u64, Addr<WatchActor>)")]
pub(crate) struct Start {
    pub(crate) spec: Arc<Spec>,
    pub(crate) from_revision: i64,
    /// The keys of the range before the watch, where they are remembered for a resync.
    pub(crate) known: Option<Known>,
    pub(crate) queue: Arc<Queue>,
    /// Told when the server has created the watch for the first time, or why it never will.
    pub(crate) opened: oneshot::Sender<Result<(), Error>>,
}

/// Find a place for a watch; one it had before is given up. Told to the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Attach {
    pub(crate) watch: u64,
    pub(crate) attachment: u32,
    pub(crate) address: Addr<WatchActor>,
    pub(crate) spec: Arc<Spec>,
    pub(crate) next_revision: i64,
    pub(crate) queue: Arc<Queue>,
    /// The member it comes from, which is the last choice.
    pub(crate) avoid: Option<EndpointId>,
}

/// Give up a watch's place. Told to the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Detach {
    pub(crate) watch: u64,
    /// The watch has ended and will not attach again.
    pub(crate) for_good: bool,
}

/// Ask the server how far a watch has come. Told to the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AskProgress {
    pub(crate) watch: u64,
}

/// End every watch and stream: the client shuts down. Told to the hub.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Shutdown;

/// A stream said something of a watch. Told to the watch.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Heard {
    pub(crate) attachment: u32,
    pub(crate) news: News,
}

/// What a stream says of a watch.
pub(crate) enum News {
    /// The server has created it.
    Created { revision: i64, cluster_id: u64 },
    /// Events; `fragment` says that more of the same answer follow.
    Events { events: Vec<Event>, fragment: bool },
    /// Everything up to this revision has been sent.
    Progress(i64),
    /// The server refused or ended it.
    Cancelled {
        endpoint: EndpointId,
        compact_revision: i64,
        reason: String,
    },
    /// An answer for it was larger than the client accepts.
    TooLarge(Error),
    /// The stream is gone.
    Broken {
        endpoint: EndpointId,
        error: Arc<Error>,
    },
}

/// Panic at the next thing the stream says, which is lost with it. For tests of what that costs.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashOnNext;

fn crash_if(asked: bool) {
    assert!(!asked, "asked to crash");
}
