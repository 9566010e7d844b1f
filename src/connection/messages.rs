//! Messages of the [`ConnectionActor`](super::ConnectionActor).

use std::{sync::Arc, time::Duration};

use actix::Message;

use super::{
    Connection, ConnectivityState, EndpointId, first_contact::FirstContact, probe::ProbeResult,
};
use crate::error::Error;

/// Connects if the endpoint is idle.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Connect;

/// Shortens the reconnect delay for a while, because calls wait for a ready member.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ReconnectSooner;

/// Closes the connection after the requests in flight have finished. The endpoint is idle until the next [`Connect`].
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Disconnect;

/// Probes the member because a call on this generation is slow or failed with "no leader".
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Suspect {
    pub(crate) generation: u64,
}

/// Probes the member, so that its raft status can be compared with the status of a suspected member.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Probe;

/// Probes the member as part of a check of all members that carry streams, unless it was probed a moment ago.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct RoutineProbe;

/// The first long-lived stream of a connection was opened. Sent by the connection's handle.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct StreamOpened;

/// Stops the actor. The response is sent when the requests in flight have finished and the connection is closed.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Drain;

/// A response on this generation contained the id of another cluster.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ForeignClusterDetected {
    pub(crate) generation: u64,
    pub(crate) cluster: u64,
}

/// An attempt to connect succeeded or failed.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct DialFinished {
    pub(super) generation: u64,
    pub(super) result: Result<FirstContact, Error>,
}

/// The reconnect delay is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ReconnectDue;

/// The delay before the connection in use is replaced is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ReplacementDue;

/// A probe received a response, failed or timed out.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ProbeFinished {
    pub(super) generation: u64,
    pub(super) result: ProbeResult,
    /// Time from the request to its result.
    pub(super) elapsed: Duration,
}

/// The response to a probe is late, and the round trips of the link do not explain it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ProbeLate {
    pub(super) generation: u64,
    /// Whether another member has sent data since the probe was sent.
    pub(super) others_responded: bool,
}

/// The delay before the next probe is over.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ProbeDue {
    pub(super) generation: u64,
    /// Whether the probe was requested. A routine probe is skipped if nothing depends on the member.
    pub(super) requested: bool,
}

/// The member's health service reported that it started or stopped serving.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ServingChanged {
    pub(super) generation: u64,
    pub(super) serving: bool,
}

/// The connection accepts no more requests: the member sent GOAWAY, or all stream ids are used. Requests in flight may
/// still finish.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ClosedToRequests {
    pub(super) generation: u64,
}

/// The connection ended without a command to close it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct ConnectionLost {
    pub(super) generation: u64,
    pub(super) reason: String,
}

/// The state of an endpoint or the health of its member changed. Sent to the owner of the connection.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(crate) struct ConnectionStateChanged {
    pub(crate) id: EndpointId,
    pub(crate) state: ConnectivityState,
    /// The connection to use, in the states `Ready` and `NoLeader`.
    pub(crate) connection: Option<Arc<Connection>>,
    /// Reason why the endpoint is not ready.
    pub(crate) error: Option<Error>,
}

/// A member is suspected to be cut off or unresponsive. Sent to the owner of the connection, which sends [`Probe`] to
/// the other connections.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct MemberSuspected {
    pub(crate) id: EndpointId,
}

/// A connection carries long-lived streams. Sent to the owner of the connection, which then sends [`RoutineProbe`] at
/// intervals to this and other connections until no connection carries streams.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct StreamsStarted;
