//! The id of an endpoint and the state of its connection.

use std::fmt;

/// Identifies an endpoint within a client. Never reused, even if the same address is removed and added again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EndpointId(pub(crate) u64);

/// State of the connection to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectivityState {
    /// There is no connection and the client does not try to connect: the balance policy does not need this endpoint.
    Idle,
    /// The client is connecting.
    Connecting,
    /// The member responds and has a leader. It receives requests.
    Ready,
    /// The member responds but cannot serve every request: it has no leader, is cut off from the other members, has not
    /// caught up after an outage, is a learner, reports that it is not serving, or a proxy in front of it responds with
    /// errors. It receives serializable reads only. The client dials the endpoint again, because it may lead to another
    /// member.
    NoLeader,
    /// The endpoint cannot be reached or does not respond. The client reconnects after a backoff.
    TransientFailure,
    /// The endpoint was removed or the client was shut down.
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
