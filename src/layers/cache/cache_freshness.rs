//! How fresh a cache is, and why it is behind.

use std::{
    fmt,
    time::{Duration, Instant, SystemTime},
};

use crate::{error::Error, watch::WatchStatus};

/// How fresh a cache is: it has every change up to [`revision`](Self::revision), confirmed [`age`](Self::age) ago.
///
/// The age of a cache that is not behind is usually less than a second, also while nothing changes; see
/// [`watch::Freshness`](crate::watch::Freshness).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CacheFreshness {
    /// Revision up to which the cache has every change.
    pub revision: i64,
    /// Time since this was confirmed. Changes in this time may be missing.
    pub age: Duration,
    /// Why the cache does not receive changes now, or `None` if it does.
    pub behind: Option<CacheLag>,
}

impl CacheFreshness {
    /// Returns whether the cache is known not to receive changes.
    pub fn is_behind(&self) -> bool {
        self.behind.is_some()
    }
}

/// Why a cache does not receive changes. It serves the last state that it has.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum CacheLag {
    /// The content comes from a snapshot file that was saved at this time. etcd has not been reached since the start.
    FromFile {
        /// Time at which the file was saved.
        saved: SystemTime,
    },
    /// The watch has been waiting for a member since this time.
    Reconnecting {
        /// Start of the outage.
        since: Instant,
    },
    /// A read of all keys has been running since this time: the first one, or a later one because revisions were
    /// compacted or the cluster was restored from a backup.
    Loading {
        /// Start of the read.
        since: Instant,
    },
    /// The member of the watch has been behind a revision of the cache since this time: it lags, or the cluster was
    /// restored from a backup. The client finds out which.
    MemberBehind {
        /// Time at which this was noticed.
        since: Instant,
    },
    /// More changes have arrived than the cache has applied.
    CatchingUp,
    /// The keys could not be read, and are read again later.
    Failed {
        /// Start of the outage.
        since: Instant,
        /// Error of the last attempt.
        error: Error,
    },
    /// The keys need more memory than `max_bytes` allows. They are read again from time to time; if changes have made
    /// the cache too large, only after later changes or deletions.
    TooLarge {
        /// Start of the outage.
        since: Instant,
        /// Size and bound.
        error: Error,
    },
    /// The cache has ended, for example because the client was shut down.
    Ended(Error),
}

impl CacheLag {
    /// Returns why a watch does not receive events.
    pub(super) fn of_watch(status: &WatchStatus) -> Option<Self> {
        match *status {
            WatchStatus::Attached { .. } => None,
            WatchStatus::Reconnecting { since } => Some(Self::Reconnecting { since }),
            WatchStatus::Resyncing { since } => Some(Self::Loading { since }),
            // The cache has not read the last items yet.
            WatchStatus::Paused { .. } | WatchStatus::Ended => Some(Self::CatchingUp),
        }
    }
}

impl fmt::Display for CacheLag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FromFile { .. } => {
                f.write_str("etcd has not been reached since the start from the snapshot file")
            }
            Self::Reconnecting { since } => {
                write!(
                    f,
                    "no member has served the watch for {:?}",
                    since.elapsed()
                )
            }
            Self::Loading { since } => {
                write!(
                    f,
                    "a read of all keys has been running for {:?}",
                    since.elapsed()
                )
            }
            Self::MemberBehind { .. } => {
                f.write_str("the member of the watch is behind a revision of the cache")
            }
            Self::CatchingUp => f.write_str("more changes have arrived than were applied"),
            Self::Failed { error, .. } | Self::TooLarge { error, .. } | Self::Ended(error) => {
                error.fmt(f)
            }
        }
    }
}
