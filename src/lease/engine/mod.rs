//! The lease engine: one actor per lease, one keeper per client.
//!
//! # How it works
//! One `LeaseActor` a lease decides by its deadline. It can be told
//! `KeepAliveDue`, `Acked`, `StreamBroken`, `Denied` and `End`; what it finds out goes to the lease's owner through the
//! cell they share.
//!
//! One `KeeperActor` a client owns what leases share: the clock that wakes them, and one keepalive stream a connection.
//! It can be told `Keep`, `Announce`, `Release`, `RenewOnce` and `Shutdown`, and hears `Answered` and `StreamEnded` from the tasks
//! that read its streams.
//!
//! Ten thousand leases must not mean ten thousand timers, nor a message in each direction for each of them. So an idle
//! lease holds no timer: the keeper has one, on a wheel of all due times. And as both sides live on one thread, they
//! share a lane: a lease writes there when it is due and what to send, and the keeper takes it in batches.
//!
//! Most keepalives are sent in time and answered at once, and then there is nothing to decide. The lane has the
//! deadlines, so the keeper does these by itself. A lease's actor is woken when something is not as it should be: an
//! answer that is late, a stream that broke, a deadline that passed, a lease that is gone.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::Message;
use tokio::sync::oneshot;

use crate::error::Error;

pub(crate) mod actor;
pub(crate) mod cell;
pub(crate) mod deadline;
pub(crate) mod keeper;
pub(crate) mod lane;
pub(crate) mod places;
pub(crate) mod route;
pub(crate) mod service;
pub(crate) mod streams;
pub(crate) mod wheel;

use cell::{LeaseCell, OnTheWay};
use deadline::Deadline;

/// Keep a lease alive until told otherwise.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Keep {
    pub(crate) cell: OnTheWay,
    pub(crate) deadline: Deadline,
}

/// Know of a lease that is not kept: to revoke it with the client where that was asked, and to tell it from another one
/// that had its id before.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Announce {
    pub(crate) cell: Arc<LeaseCell>,
}

/// The lease's handle is gone: keep it no more, and revoke it where that was asked.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Release {
    pub(crate) cell: Arc<LeaseCell>,
    pub(crate) revoke: bool,
}

/// Send one keepalive for a lease that need not be kept; the answer is its TTL, or nothing if the stream broke.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RenewOnce {
    pub(crate) lease: i64,
    /// Not by the member that was asked last.
    pub(crate) elsewhere: bool,
    pub(crate) answer: oneshot::Sender<Result<i64, Error>>,
}

/// Keep nothing any more, revoke what is to be revoked, wait for it at most that long, and end.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Shutdown {
    pub(crate) patience: Duration,
}

/// Makes the actor of a lease panic. For tests of what its crash costs.
#[cfg(feature = "test-faults")]
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashLease(pub(crate) i64);

/// Makes the keeper panic with the next keepalives in its hands. For tests of what its crash costs.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct CrashWhenDue;

/// Answers arrived on a stream: lease and TTL.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Answered {
    pub(crate) stream: u64,
    pub(crate) answers: Vec<(i64, i64)>,
}

/// A stream ended, or its connection is not to be used any more.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StreamEnded {
    pub(crate) stream: u64,
    pub(crate) error: Option<Error>,
}

/// The time a lease asked to be woken at has come.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct KeepAliveDue;

/// A keepalive sent at that time was answered.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Acked {
    pub(crate) ttl: i64,
    pub(crate) sent_at: Instant,
}

/// The keepalive sent at that time will not be answered.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct StreamBroken {
    pub(crate) sent_at: Instant,
}

/// The server refused the keepalive to this user.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Denied;

/// The lease is kept no more.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct End;
