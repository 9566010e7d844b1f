//! The view of a client on the events of a watch.
//!
//! The engine knows the keys of the cluster only: legs, cursor and buffer are the same for every view. The consumer of
//! the buffer translates the keys when it takes a batch, in place.

use super::Resynced;
use crate::{proto::Event, request::ClientView};

/// The view of a client, and the cluster whose revisions the watch delivers.
#[derive(Clone, Default)]
pub(super) struct WatchView {
    client: ClientView,
    cluster: u64,
}

impl WatchView {
    pub(super) fn new(client: ClientView, cluster: u64) -> Self {
        Self { client, cluster }
    }

    pub(super) fn translate_events(&self, events: &mut Vec<Event>) {
        self.client.remove_prefix(events);
    }

    pub(super) fn translate_resynced(&self, resynced: &mut Resynced) {
        self.client.remove_prefix(&mut resynced.created);
        self.client.remove_prefix(&mut resynced.changed);
        self.client.remove_prefix(&mut resynced.deleted);
    }

    /// Records a revision that the application receives: later reads of an ordered client are not older.
    pub(super) fn delivered(&self, revision: i64) {
        if let Some(order) = self.client.order() {
            order.watched(self.cluster, revision);
        }
    }
}
