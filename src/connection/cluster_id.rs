//! The cluster to which a client belongs.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Outcome};

/// Id of the client's cluster, taken from the first response. Shared by all connections of a client.
#[derive(Debug, Default)]
pub(crate) struct ClusterId {
    /// Zero while unknown.
    id: AtomicU64,
    /// Whether a different id replaces the known one instead of being rejected.
    follow_change: bool,
}

impl ClusterId {
    pub(crate) fn new(follow_change: bool) -> Self {
        Self {
            id: AtomicU64::new(0),
            follow_change,
        }
    }

    /// Returns the id, or zero while it is unknown.
    pub(crate) fn get(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Returns whether responses with this cluster id are accepted. The first id is stored. Zero, which stands for a
    /// missing id, is always accepted.
    pub(crate) fn accepts(&self, cluster: u64) -> bool {
        if cluster == 0 || self.get() == cluster {
            return true;
        }
        if self.follow_change {
            let before = self.id.swap(cluster, Ordering::Relaxed);
            if before != 0 && before != cluster {
                tracing::warn!(
                    before = format_args!("{before:x}"),
                    after = format_args!("{cluster:x}"),
                    "cluster id changed; responses of the new cluster accepted"
                );
            }
            return true;
        }
        // Two first responses may arrive at the same time: the second is accepted if it has the same id.
        self.id
            .compare_exchange(0, cluster, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|first| first == cluster, |_| true)
    }
}

/// Returns the error for a member of a cluster that the client does not belong to.
pub(crate) fn foreign_cluster_error(known: u64, cluster: u64) -> Error {
    Error::new(
        ErrorKind::ClusterChanged,
        Outcome::NotSent,
        format!(
            "the member belongs to cluster {cluster:x}, but this client belongs to cluster {known:x}; \
             create a new client if the change is intended"
        ),
    )
}
