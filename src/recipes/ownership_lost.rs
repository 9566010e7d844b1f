//! Why a lock or a leadership was lost.

use std::fmt;

use crate::{
    error::{Error, ErrorKind, Outcome},
    lease::LeaseLost,
};

/// Why a lock or a leadership is no longer held, or may no longer be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnershipLost {
    /// The lease was not renewed before its deadline. The server may have given the lock to another session. If it has
    /// not, and the lease is renewed later, the ownership is
    /// [certain again](super::mutex::Ownership::certain_again). All other reasons are final.
    AtRisk,
    /// The lease of the session was lost.
    Session(LeaseLost),
    /// The session was closed or dropped.
    Closed,
    /// The key was deleted, or another session has taken it over.
    Taken,
    /// The candidate reported that it is [not healthy](super::election::Campaign::healthy_while).
    Unhealthy,
    /// The [visibility time-out](super::queue::Queue::visibility) of a queue's item has passed.
    TimedOut,
}

impl fmt::Display for OwnershipLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtRisk => f.write_str("the lease was not renewed before its deadline"),
            Self::Session(reason) => write!(f, "the lease of the session was lost ({reason:?})"),
            Self::Closed => f.write_str("the session was closed"),
            Self::Unhealthy => f.write_str("the candidate reported that it is not healthy"),
            Self::TimedOut => f.write_str("the visibility time-out of the item has passed"),
            Self::Taken => f.write_str("the key was deleted or taken over by another session"),
        }
    }
}

impl From<OwnershipLost> for Error {
    fn from(loss: OwnershipLost) -> Self {
        let kind = match loss {
            OwnershipLost::AtRisk
            | OwnershipLost::Taken
            | OwnershipLost::Unhealthy
            | OwnershipLost::TimedOut => ErrorKind::LockLost,
            OwnershipLost::Session(_) | OwnershipLost::Closed => ErrorKind::SessionLost,
        };
        Self::new(kind, Outcome::Rejected, loss.to_string())
    }
}
