//! One endpoint, one supervised connection.
//!
//! A [`ConnectionActor`](actor::ConnectionActor) dials, drives and watches over the connection to one endpoint. It can
//! be told [`Connect`], [`Wanted`], [`Rest`], [`Suspect`], [`Probe`], [`ClusterLeft`] and [`Drain`]; it hears [`Dialled`],
//! [`Probed`], [`RequestsRefused`] and [`ConnectionLost`] from its own tasks; and it tells the balancer
//! [`ConnectivityChanged`] and [`Suspected`].
//!
//! Every connection has a generation. What is said of an older one is ignored, so a late message can never take a
//! working connection away. A connection is ready only when an RPC has been answered on it: the kernel of a
//! frozen process still accepts TCP.
//!
//! What it decides is pure code: [`state`] (the states and the reconnect delay), [`verdict`] (what a probe's answer
//! means), [`pace`] (how often it is asked).

use std::{fmt, sync::Arc};

use actix::Message;

use crate::error::Error;

pub(crate) mod actor;
mod handle;
pub(crate) mod pace;
pub(crate) mod probe;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod token;
pub(crate) mod verdict;

pub(crate) use handle::{Connection, Standing, Suspicion};
pub(crate) use verdict::{Health, Sighting, Verdict};

/// Names an endpoint of a client for as long as the client has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EndpointId(pub(crate) u64);

/// What is known of the connection to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectivityState {
    /// No connection, and none is wanted now.
    Idle,
    /// A connection is being made.
    Connecting,
    /// The member answers and has a leader: it gets requests.
    Ready,
    /// The member answers, but it is cut off from the leader or there is none, or it was away and has not caught up: it
    /// gets serializable reads only.
    NoLeader,
    /// The member cannot be reached, does not answer or does not serve; it is tried again soon.
    TransientFailure,
    /// The endpoint was removed or the client shut down.
    Shutdown,
}

impl fmt::Display for ConnectivityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::NoLeader => "without leader",
            Self::TransientFailure => "failing",
            Self::Shutdown => "shut down",
        })
    }
}

/// Make a connection if there is none.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Connect;

/// Calls wait for any member: try more often for a while.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Wanted;

/// Close the connection gracefully, and make no other until told to.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Rest;

/// A call on this generation is slow, or was told that there is no leader.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Suspect {
    pub(crate) generation: u64,
}

/// Ask the member how it is: another one is under suspicion, and they are compared.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Probe;

/// The endpoint is not wanted any more: what is in flight may finish, then the connection is closed.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Drain;

/// A connection attempt ended.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Dialled {
    pub(crate) generation: u64,
    pub(crate) result: Result<probe::FirstContact, Error>,
}

/// A probe ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Probed {
    pub(crate) generation: u64,
    pub(crate) answer: probe::Answer,
}

/// The connection takes no more requests: the member is about to close it, or its stream ids are used up.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct RequestsRefused {
    pub(crate) generation: u64,
}

/// The member behind this generation has answered for another cluster.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ClusterLeft {
    pub(crate) generation: u64,
    pub(crate) cluster: u64,
}

/// The connection ended by itself.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ConnectionLost {
    pub(crate) generation: u64,
    pub(crate) reason: String,
}

/// An endpoint's state changed. Told to the balancer.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(crate) struct ConnectivityChanged {
    pub(crate) id: EndpointId,
    pub(crate) state: ConnectivityState,
    /// The connection to use, where the state has one.
    pub(crate) connection: Option<Arc<Connection>>,
    /// Why it is not ready.
    pub(crate) error: Option<Error>,
}

/// A member is under suspicion. Told to the balancer, which has the others probed.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Suspected {
    pub(crate) id: EndpointId,
}
