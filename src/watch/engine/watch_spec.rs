//! The options of a watch, which stay the same on every stream.

use std::time::Duration;

use bytes::Bytes;

use crate::proto::WatchCreateRequest;

#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
pub(crate) struct WatchSpec {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
    pub(crate) filters: Vec<i32>,
    pub(crate) prev_kv: bool,
    pub(crate) progress_notify: bool,
    pub(crate) fragment: bool,
    pub(crate) require_leader: bool,
    /// Whether the consumer receives `Disconnected`, `Resumed` and `Paused`.
    pub(crate) status_events: bool,
    pub(crate) resync: bool,
    pub(crate) max_outage: Option<Duration>,
}

impl WatchSpec {
    pub(crate) fn create_request(&self, watch_id: i64, start_revision: i64) -> WatchCreateRequest {
        WatchCreateRequest {
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            start_revision,
            progress_notify: self.progress_notify,
            filters: self.filters.clone(),
            prev_kv: self.prev_kv,
            watch_id,
            fragment: self.fragment,
        }
    }
}
