//! How complete a watch is, and since when.

use std::time::{Duration, Instant};

/// How complete a watch is: the consumer has read every change up to [`revision`](Self::revision), confirmed at
/// [`as_of`](Self::as_of).
///
/// A watch without events is confirmed as well. If nothing at all is written to the cluster, the probes of the member
/// confirm it, about every 0.7 s. If only other keys are written, the progress of the watch does, which the client
/// requests every 10 s ([`watch_progress_interval`](crate::ClientBuilder::watch_progress_interval)).
/// [`Watch::request_progress`](super::Watch::request_progress) requests it at once.
///
/// A confirmation comes from one member, which may be behind the others. A member that is cut off from the cluster
/// is left within 1.5 s after the first write that it misses, see
/// [`Liveness`](crate::client::Liveness#idle-streams).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Freshness {
    /// Revision up to which the consumer has read everything.
    pub revision: i64,
    /// Time of the confirmation: when the last event that the consumer has read arrived, or when the request was sent to
    /// which the member responded that there is nothing after `revision`. Changes after this time may be missing.
    pub as_of: Instant,
    /// Where the watch runs, or why it does not receive events now.
    pub status: WatchStatus,
}

impl Freshness {
    /// Returns the time since [`as_of`](Self::as_of).
    pub fn age(&self) -> Duration {
        self.as_of.elapsed()
    }
}

/// Where a watch runs, or why it does not receive events.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchStatus {
    /// It receives events.
    Attached {
        /// Endpoint of the stream.
        endpoint: String,
        /// Id of the member that created the watch; 0 if it is unknown, as behind some proxies.
        member: u64,
    },
    /// It has been waiting for a stream since this time.
    Reconnecting {
        /// Start of the outage.
        since: Instant,
    },
    /// It has been waiting since this time for the consumer, whose buffer is full.
    Paused {
        /// Time at which the buffer was full.
        since: Instant,
    },
    /// It has been reading the range again since this time, see [`WatchEvent::Resynced`](super::WatchEvent::Resynced).
    Resyncing {
        /// Start of the read.
        since: Instant,
    },
    /// It has ended; the consumer may not have read its last items yet.
    Ended,
}
