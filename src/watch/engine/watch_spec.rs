//! The range and the options of a watch, which stay the same on every stream.

use std::time::Duration;

use bytes::Bytes;

use crate::proto::{WatchCreateRequest, watch_create_request::FilterType};

/// Default number of buffered events before the watch is paused.
const DEFAULT_BUFFER: usize = 8192;
/// Default number of buffered bytes before the watch is paused.
const DEFAULT_BUFFER_BYTES: usize = 16 << 20;

/// Options of a watch. The methods of [`WatchRequest`](crate::watch::WatchRequest) with the same names set and describe
/// them.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
pub(crate) struct WatchOptions {
    /// 0 means from now on.
    pub(crate) start_revision: i64,
    /// Revision at which the consumer has read the range before the watch; 0 if it has not. A cluster that is behind it
    /// was restored from a backup.
    pub(crate) read_revision: i64,
    pub(crate) filter_puts: bool,
    pub(crate) filter_deletes: bool,
    pub(crate) prev_kv: bool,
    pub(crate) progress_notify: bool,
    pub(crate) fragment: bool,
    pub(crate) require_leader: bool,
    pub(crate) status_events: bool,
    pub(crate) resync: bool,
    pub(crate) hedged: bool,
    pub(crate) buffer: usize,
    pub(crate) buffer_bytes: usize,
    pub(crate) max_outage: Option<Duration>,
    pub(crate) freshness_interval: Option<Duration>,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            start_revision: 0,
            read_revision: 0,
            filter_puts: false,
            filter_deletes: false,
            prev_kv: false,
            progress_notify: false,
            fragment: true,
            require_leader: true,
            status_events: false,
            resync: false,
            hedged: false,
            buffer: DEFAULT_BUFFER,
            buffer_bytes: DEFAULT_BUFFER_BYTES,
            max_outage: None,
            freshness_interval: None,
        }
    }
}

/// The range as etcd encodes it, and the validated options.
#[derive(Debug)]
pub(crate) struct WatchSpec {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
    pub(crate) options: WatchOptions,
}

impl WatchSpec {
    pub(crate) fn create_request(&self, watch_id: i64, start_revision: i64) -> WatchCreateRequest {
        let options = &self.options;
        let filters = [
            (options.filter_puts, FilterType::Noput),
            (options.filter_deletes, FilterType::Nodelete),
        ];
        let filters = filters.into_iter().filter(|(is_set, _)| *is_set);
        WatchCreateRequest {
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            start_revision,
            // Moves the position of a watch without events also behind proxies that ignore progress requests. The watch
            // delivers the progress only if its consumer wants it.
            progress_notify: true,
            filters: filters.map(|(_, filter)| filter.into()).collect(),
            prev_kv: options.prev_kv,
            watch_id,
            fragment: options.fragment,
        }
    }
}
