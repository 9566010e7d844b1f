//! Reading keys.

use std::time::Duration;

use bytes::Bytes;

use super::{
    IntoBytes, KeyValue, KeyValueStream, Pages, ResponseHeader, revision_filter::RevisionFilter,
};
use crate::{
    error::{Error, Result},
    proto::{
        RangeRequest, RangeResponse,
        range_request::{SortOrder, SortTarget},
        rpc::{self, Rpc},
    },
    request::{
        ClientHandle, ClientView,
        key_range::{KeyRange, key_range_methods},
        macros::{from_response, request},
    },
    transport::grpc,
};

const SINGLE_KEY_WITH_LIMIT: &str =
    "`limit` cannot be combined with a request for only the first or the last key";

/// Reads one key or a range of keys.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Get<C = ()> {
    range: KeyRange,
    wire: RangeRequest,
    order: Order,
    timeout: Option<Duration>,
    client: C,
}

request!(Get { range, wire, order } -> GetResponse);

/// The requested order. Detects options that contradict each other.
#[derive(Debug, Clone, Default)]
struct Order {
    target: Option<SortTarget>,
    direction: Option<SortOrder>,
    /// Whether only the first or the last key is requested.
    single: bool,
    conflict: Option<&'static str>,
}

impl Order {
    fn sort_by(&mut self, target: SortTarget) {
        if self
            .target
            .replace(target)
            .is_some_and(|previous| previous != target)
        {
            self.conflict = Some("the request is sorted by two targets; choose one");
        }
    }

    fn set_direction(&mut self, direction: SortOrder) {
        let previous = self.direction.replace(direction);
        if previous.is_some_and(|previous| previous != direction) {
            self.conflict = Some("the request is sorted in both directions; choose one");
        }
    }
}

/// Creates a request that reads a key, or with `.prefix()`, `.range(end)` or `.from_key()` several.
pub fn get(key: impl IntoBytes) -> Get {
    Get {
        range: KeyRange::key(key.into_bytes()),
        wire: RangeRequest::default(),
        order: Order::default(),
        timeout: None,
        client: (),
    }
}

key_range_methods!(<C> Get<C>);

impl<C> Get<C> {
    /// Returns at most this many keys; [`GetResponse::more`] is true if there are others. Default: 0, no limit.
    pub fn limit(mut self, limit: i64) -> Self {
        if self.order.single && limit != 1 {
            self.order.conflict = Some(SINGLE_KEY_WITH_LIMIT);
        }
        self.wire.limit = limit;
        self
    }

    /// Reads the state at this revision. Default: 0, the newest.
    pub fn revision(mut self, revision: i64) -> Self {
        self.wire.revision = revision;
        self
    }

    /// Sorts by key, ascending unless `.descending()` is set. This is also the default order.
    pub fn sort_by_key(self) -> Self {
        self.sort_by(SortTarget::Key)
    }

    /// Sorts by version, ascending unless `.descending()` is set.
    pub fn sort_by_version(self) -> Self {
        self.sort_by(SortTarget::Version)
    }

    /// Sorts by creation revision, ascending unless `.descending()` is set.
    pub fn sort_by_create_revision(self) -> Self {
        self.sort_by(SortTarget::Create)
    }

    /// Sorts by the revision of the last change, ascending unless `.descending()` is set.
    pub fn sort_by_mod_revision(self) -> Self {
        self.sort_by(SortTarget::Mod)
    }

    /// Sorts by value, ascending unless `.descending()` is set.
    pub fn sort_by_value(self) -> Self {
        self.sort_by(SortTarget::Value)
    }

    /// Sorts with the smallest first. Default of the `sort_by_…` options.
    pub fn ascending(mut self) -> Self {
        self.order.set_direction(SortOrder::Ascend);
        self.wire.set_sort_order(SortOrder::Ascend);
        self
    }

    /// Sorts with the largest first; by key unless a `sort_by_…` option is set.
    pub fn descending(mut self) -> Self {
        self.order.set_direction(SortOrder::Descend);
        self.wire.set_sort_order(SortOrder::Descend);
        self
    }

    fn sort_by(mut self, target: SortTarget) -> Self {
        self.order.sort_by(target);
        self.wire.set_sort_target(target);
        if self.wire.sort_order() == SortOrder::None {
            self.wire.set_sort_order(SortOrder::Ascend);
        }
        self
    }

    fn single(mut self, target: SortTarget, direction: SortOrder) -> Self {
        self.order.set_direction(direction);
        self.order.single = true;
        if self.wire.limit > 1 {
            self.order.conflict = Some(SINGLE_KEY_WITH_LIMIT);
        }
        self.wire.set_sort_order(direction);
        self.wire.limit = 1;
        self.sort_by(target)
    }

    /// Returns only the first key of the range.
    pub fn first_by_key(self) -> Self {
        self.single(SortTarget::Key, SortOrder::Ascend)
    }

    /// Returns only the last key of the range.
    pub fn last_by_key(self) -> Self {
        self.single(SortTarget::Key, SortOrder::Descend)
    }

    /// Returns only the key that was created first.
    pub fn first_by_create_revision(self) -> Self {
        self.single(SortTarget::Create, SortOrder::Ascend)
    }

    /// Returns only the key that was created last.
    pub fn last_by_create_revision(self) -> Self {
        self.single(SortTarget::Create, SortOrder::Descend)
    }

    /// Returns only the key whose last change is the oldest.
    pub fn first_by_mod_revision(self) -> Self {
        self.single(SortTarget::Mod, SortOrder::Ascend)
    }

    /// Returns only the key whose last change is the newest.
    pub fn last_by_mod_revision(self) -> Self {
        self.single(SortTarget::Mod, SortOrder::Descend)
    }

    /// Reads from one member without consulting the others: faster and possible without a leader, but the data may be
    /// stale. Default: linearizable, confirmed by a quorum.
    pub fn serializable(mut self) -> Self {
        self.wire.serializable = true;
        self
    }

    /// Returns keys without values. Default: with values.
    pub fn keys_only(mut self) -> Self {
        self.wire.keys_only = true;
        self
    }

    /// Returns only the number of keys. Default: also the keys and values.
    pub fn count_only(mut self) -> Self {
        self.wire.count_only = true;
        self
    }

    /// Returns only keys last changed at this revision or later. Default: 0, no bound.
    pub fn min_mod_revision(mut self, revision: i64) -> Self {
        self.wire.min_mod_revision = revision;
        self
    }

    /// Returns only keys last changed at this revision or earlier. Default: 0, no bound.
    pub fn max_mod_revision(mut self, revision: i64) -> Self {
        self.wire.max_mod_revision = revision;
        self
    }

    /// Returns only keys created at this revision or later. Default: 0, no bound.
    pub fn min_create_revision(mut self, revision: i64) -> Self {
        self.wire.min_create_revision = revision;
        self
    }

    /// Returns only keys created at this revision or earlier. Default: 0, no bound.
    pub fn max_create_revision(mut self, revision: i64) -> Self {
        self.wire.max_create_revision = revision;
        self
    }

    /// Returns the message that is sent to etcd. Fails if the request is not valid. Useful for actors that replace
    /// `Etcd` in tests.
    pub fn wire(&self) -> Result<RangeRequest> {
        let (key, range_end) = self.range.resolve()?;
        let wire = &self.wire;
        let numbers = [
            ("limit", wire.limit),
            ("revision", wire.revision),
            ("min_mod_revision", wire.min_mod_revision),
            ("max_mod_revision", wire.max_mod_revision),
            ("min_create_revision", wire.min_create_revision),
            ("max_create_revision", wire.max_create_revision),
        ];
        for (name, number) in numbers {
            if number < 0 {
                return Err(Error::invalid(format!(
                    "`{name}` must not be negative, but is {number}"
                )));
            }
        }
        let empty = |min: i64, max: i64| max != 0 && min > max;
        if empty(wire.min_mod_revision, wire.max_mod_revision)
            || empty(wire.min_create_revision, wire.max_create_revision)
        {
            return Err(Error::invalid(
                "the minimum revision must not be greater than the maximum revision",
            ));
        }
        if let Some(conflict) = self.order.conflict {
            return Err(Error::invalid(conflict));
        }
        if wire.count_only && wire.keys_only {
            return Err(Error::invalid(
                "`count_only` and `keys_only` exclude each other; choose one",
            ));
        }
        Ok(RangeRequest {
            key,
            range_end,
            ..wire.clone()
        })
    }

    fn perform(
        self,
        client: &impl ClientHandle,
        timeout: Duration,
    ) -> impl Future<Output = Result<GetResponse>> {
        // Encoded outside of the future, which would contain the request until the response arrives.
        let encoded = self.encode(client.view());
        async move {
            let (rpc, body) = encoded?;
            let (caller, view) = (client.caller(), client.view());
            let mut response: RangeResponse = match view.order() {
                None => caller.unary(rpc, body, timeout).await?,
                Some(order) => {
                    let read = order.read::<RangeRequest, _>(caller, rpc, body, timeout);
                    Box::pin(read).await?
                }
            };
            view.accept(&mut response);
            response.try_into()
        }
    }

    fn encode(&self, view: &ClientView) -> Result<(Rpc, Bytes)> {
        let mut wire = self.wire().map_err(|error| error.with_rpc(rpc::RANGE))?;
        view.add_prefix(&mut wire);
        let rpc = if wire.serializable {
            rpc::RANGE.leaderless()
        } else {
            rpc::RANGE
        };
        Ok((rpc, grpc::encode(&wire)?))
    }
}

impl<C: ClientHandle> Get<C> {
    /// Reads a range of any size in pages of `keys` keys, all at one revision.
    ///
    /// The first page is an error if `keys` is 0, if the request is for a single key, has a limit, counts only, or is
    /// sorted other than by ascending keys.
    pub fn pages(self, keys: u32) -> Pages<C> {
        let invalid = if keys == 0 {
            Some("the page size must be at least 1")
        } else {
            self.not_readable_in_parts()
        };
        let (page, _, client) = self.unsorted().into_parts();
        Pages::new(page.limit(i64::from(keys)).on(&client), invalid)
    }

    /// Reads a range of any size as a stream of keys and values, in ascending order of keys, all at one revision, in
    /// constant memory: parts of about 1 MiB, the next one being fetched while the application reads the current one.
    ///
    /// Members with etcd 3.7 or later send the range with the RPC `RangeStream`; older ones page by page. If the
    /// member fails, the stream continues on another one after the last key, at the same revision. A compaction of that
    /// revision ends the stream with [`ErrorKind::Compacted`](crate::ErrorKind::Compacted). The timeout of the request
    /// applies to each part; a page that does not arrive in time is requested again with fewer keys, down to one. Bounds
    /// of revisions are applied by the client, because etcd would read the whole range for each page.
    ///
    /// The first item is an error if the request is for a single key, has a limit, counts only, or is sorted other than
    /// by ascending keys.
    ///
    /// ```no_run
    /// # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
    /// let mut all = etcd.get("").prefix().stream();
    /// while let Some(kv) = all.next().await {
    ///     let kv = kv?;
    ///     println!("{:?} = {:?}", kv.key_str(), kv.value_str());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream(self) -> KeyValueStream {
        let client = self.client.clone();
        let timeout = self.timeout.unwrap_or_else(|| client.request_timeout());
        // Removes the bounds of revisions only after the check of the whole request.
        let invalid = match self.wire() {
            Err(error) => Some(error),
            Ok(_) => self.not_readable_in_parts().map(Error::invalid),
        };
        let mut range = self.unsorted();
        let filter = RevisionFilter::take_from(&mut range.wire);
        KeyValueStream::new(range, filter, client, timeout, invalid)
    }
}

impl<C> Get<C> {
    /// Returns why the request cannot be continued after a key, or `None` if it can.
    fn not_readable_in_parts(&self) -> Option<&'static str> {
        let by_key = |target| target == SortTarget::Key;
        if !self.order.target.is_none_or(by_key) || self.wire.sort_order() == SortOrder::Descend {
            Some("pages and streams are in ascending order of keys; remove the sort options")
        } else if self.wire.limit != 0 || self.wire.count_only {
            Some("pages and streams do not support `limit` and `count_only`")
        } else if !self.range.is_range() {
            Some("pages and streams need a range; add `prefix`, `range` or `from_key`")
        } else {
            None
        }
    }

    /// Removes sort options, which only repeat the default order: with them, etcd reads and sorts the whole range for
    /// each page.
    fn unsorted(mut self) -> Self {
        self.wire.set_sort_order(SortOrder::None);
        self
    }

    /// Returns the same read as a linearizable one, or `None` if it already is.
    pub(super) fn linearizable(mut self) -> Option<Self> {
        std::mem::take(&mut self.wire.serializable).then_some(self)
    }

    /// Returns the request for the next page: from this key to the same end, at this revision.
    pub(super) fn continued(mut self, from: Bytes, revision: i64) -> Result<Self> {
        let wire = self.wire()?;
        self.range = KeyRange::key(from);
        // etcd encodes "no end" as one zero byte.
        if wire.range_end[..] == [0] {
            self.range.unbounded();
        } else {
            self.range.until(wire.range_end);
        }
        self.wire.revision = revision;
        Ok(self)
    }
}

/// The response to a [`Get`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GetResponse {
    /// Cluster and member that responded, and the revision of the read.
    pub header: ResponseHeader,
    /// The keys and values.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit excluded keys.
    pub more: bool,
    /// Number of keys in the range, regardless of the limit.
    pub count: i64,
}

impl GetResponse {
    /// Returns the first key and value, if there is one.
    pub fn first(&self) -> Option<&KeyValue> {
        self.kvs.first()
    }

    /// Returns the value of the first key, if there is one: the value of a request for a single key.
    pub fn value(&self) -> Option<&Bytes> {
        self.kvs.first().map(|kv| &kv.value)
    }
}

from_response!(GetResponse requires header: RangeResponse => kvs, more, count);
