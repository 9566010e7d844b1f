//! What all connections of a client share.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    balancer::ReadySetCell,
    connection::token::TokenCell,
    error::{Error, ErrorKind, Outcome},
    transport::dial::DialOptions,
};

/// What all connections of a client share.
pub(crate) struct Shared {
    pub(crate) dial: DialOptions,
    pub(crate) token: Arc<TokenCell>,
    pub(crate) ready: Arc<ReadySetCell>,
    pub(crate) cluster: ClusterId,
    /// Whether members are looked at even when nothing seems wrong, to know who leads.
    pub(crate) follow_leader: bool,
}

/// The cluster the client belongs to: that of the first member that told it.
#[derive(Debug, Default)]
pub(crate) struct ClusterId {
    id: AtomicU64,
    /// Whether another cluster in its place is followed, not refused.
    follow: bool,
}

impl ClusterId {
    pub(crate) fn new(follow: bool) -> Self {
        Self {
            id: AtomicU64::new(0),
            follow,
        }
    }

    /// Zero while unknown.
    pub(crate) fn get(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Whether an answer from that cluster is one of ours.
    pub(crate) fn accepts(&self, cluster: u64) -> bool {
        if cluster == 0 || self.get() == cluster {
            return true;
        }
        if self.follow {
            let before = self.id.swap(cluster, Ordering::Relaxed);
            if before != 0 && before != cluster {
                tracing::warn!(
                    before = format_args!("{before:x}"),
                    now = format_args!("{cluster:x}"),
                    "the endpoints lead to another cluster; it is followed"
                );
            }
            return true;
        }
        // Two first answers may come at once: the second is ours if it names the same cluster.
        self.id
            .compare_exchange(0, cluster, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|first| first == cluster, |_| true)
    }
}

pub(crate) fn other_cluster(known: u64, cluster: u64) -> Error {
    Error::new(
        ErrorKind::ClusterChanged,
        Outcome::NotSent,
        format!(
            "it belongs to the cluster {cluster:x}, while this client belongs to {known:x}; \
             make a new client if the change is wanted"
        ),
    )
}
