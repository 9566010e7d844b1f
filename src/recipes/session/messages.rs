//! Messages from and to the actor of a session.

use std::time::Instant;

use actix::Message;
use bytes::Bytes;

use super::UnrestoredKey;
use crate::lease::LeaseLost;

/// A change of the state of a session.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum SessionEvent {
    /// The lease was not renewed before its deadline. The server may still have it.
    AtRisk {
        /// The deadline that has passed.
        deadline: Instant,
    },
    /// The lease was renewed after it was at risk: it is certain again.
    Recovered {
        /// The new deadline.
        deadline: Instant,
    },
    /// The lease was lost, for this reason. The session is granting a new one.
    Healing(LeaseLost),
    /// The session has a new lease and has put its keys again, except for those in
    /// [`KeysNotRestored`](Self::KeysNotRestored).
    Healed {
        /// The new lease.
        lease: i64,
        /// Keys that were not put again because another client has put them in the meantime.
        taken: Vec<Bytes>,
    },
    /// The session could not put these keys again, each for its own reason. All other keys are bound to the new lease.
    /// The session retries, with growing delays. Follows [`Healed`](Self::Healed), and again if a reason changes.
    KeysNotRestored(Vec<UnrestoredKey>),
    /// A retry has put keys again that were [not restored](Self::KeysNotRestored).
    KeysRestored {
        /// The keys.
        keys: Vec<Bytes>,
        /// Keys that were not put again because another client has put them in the meantime.
        taken: Vec<Bytes>,
    },
    /// The session is lost, for this reason. This is the last event.
    Lost(LeaseLost),
}

/// Stop the actor: the session's handle was dropped.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct EndSession;
