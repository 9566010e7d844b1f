//! Reading keys.

use std::time::Duration;

use bytes::Bytes;

use super::{IntoBytes, KeyValue, Pages, ResponseHeader, header};
use crate::{
    call::Rpc,
    client::Client,
    error::{Error, Result},
    proto::{
        RangeRequest, RangeResponse,
        range_request::{SortOrder, SortTarget},
    },
    request::{
        key_range::{Span, spans},
        request,
    },
    retry::RpcClass,
    transport::grpc,
};

const ONE_KEY: &str = "the first or the last key is one key; leave the limit out";

/// Reads one key, or many.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Get<C = ()> {
    span: Span,
    wire: RangeRequest,
    order: Order,
    timeout: Option<Duration>,
    client: C,
}

request!(Get { span, wire, order } -> GetResponse);

/// What was said about the order, to notice where it contradicts itself.
#[derive(Debug, Clone, Default)]
struct Order {
    target: Option<SortTarget>,
    direction: Option<SortOrder>,
    /// Only the first or the last key is wanted.
    one: bool,
    conflict: Option<&'static str>,
}

impl Order {
    fn sort_by(&mut self, target: SortTarget) {
        if self
            .target
            .replace(target)
            .is_some_and(|before| before != target)
        {
            self.conflict = Some("it is to be sorted by two things; choose one");
        }
    }

    fn direct(&mut self, direction: SortOrder) {
        let before = self.direction.replace(direction);
        if before.is_some_and(|before| before != direction) {
            self.conflict = Some("it is to be sorted in both directions; choose one");
        }
    }
}

/// A request that reads a key, or with `.prefix()`, `.range(end)` or `.from_key()` many.
pub fn get(key: impl IntoBytes) -> Get {
    Get {
        span: Span::key(key.into_bytes()),
        wire: RangeRequest::default(),
        order: Order::default(),
        timeout: None,
        client: (),
    }
}

spans!(<C> Get<C>);

impl<C> Get<C> {
    /// At most that many keys; the answer's `more` tells whether there are others. Default: 0, no limit.
    pub fn limit(mut self, limit: i64) -> Self {
        if self.order.one && limit != 1 {
            self.order.conflict = Some(ONE_KEY);
        }
        self.wire.limit = limit;
        self
    }

    /// As it was at that revision. Default: the newest.
    pub fn revision(mut self, revision: i64) -> Self {
        self.wire.revision = revision;
        self
    }

    /// Sorted by key, ascending unless `.descending()` is said.
    pub fn sort_by_key(self) -> Self {
        self.sort_by(SortTarget::Key)
    }

    /// Sorted by version, ascending unless `.descending()` is said.
    pub fn sort_by_version(self) -> Self {
        self.sort_by(SortTarget::Version)
    }

    /// Sorted by the revision of creation, ascending unless `.descending()` is said.
    pub fn sort_by_create_revision(self) -> Self {
        self.sort_by(SortTarget::Create)
    }

    /// Sorted by the revision of the last change, ascending unless `.descending()` is said.
    pub fn sort_by_mod_revision(self) -> Self {
        self.sort_by(SortTarget::Mod)
    }

    /// Sorted by value, ascending unless `.descending()` is said.
    pub fn sort_by_value(self) -> Self {
        self.sort_by(SortTarget::Value)
    }

    /// Smallest first. The default of the `sort_by_…` options.
    pub fn ascending(mut self) -> Self {
        self.order.direct(SortOrder::Ascend);
        self.wire.set_sort_order(SortOrder::Ascend);
        self
    }

    /// Largest first; by key where nothing else is said.
    pub fn descending(mut self) -> Self {
        self.order.direct(SortOrder::Descend);
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

    fn only(mut self, target: SortTarget, order: SortOrder) -> Self {
        self.order.direct(order);
        self.order.one = true;
        if self.wire.limit > 1 {
            self.order.conflict = Some(ONE_KEY);
        }
        self.wire.set_sort_order(order);
        self.wire.limit = 1;
        self.sort_by(target)
    }

    /// Only the first key of the range.
    pub fn first_by_key(self) -> Self {
        self.only(SortTarget::Key, SortOrder::Ascend)
    }

    /// Only the last key of the range.
    pub fn last_by_key(self) -> Self {
        self.only(SortTarget::Key, SortOrder::Descend)
    }

    /// Only the key of the range that was created first.
    pub fn first_by_create_revision(self) -> Self {
        self.only(SortTarget::Create, SortOrder::Ascend)
    }

    /// Only the key of the range that was created last.
    pub fn last_by_create_revision(self) -> Self {
        self.only(SortTarget::Create, SortOrder::Descend)
    }

    /// Only the key of the range that has not been changed for the longest time.
    pub fn first_by_mod_revision(self) -> Self {
        self.only(SortTarget::Mod, SortOrder::Ascend)
    }

    /// Only the key of the range that was changed last.
    pub fn last_by_mod_revision(self) -> Self {
        self.only(SortTarget::Mod, SortOrder::Descend)
    }

    /// Answered by one member from what it has: faster and possible without a leader, but perhaps old. Default:
    /// linearizable, agreed on by a quorum.
    pub fn serializable(mut self) -> Self {
        self.wire.serializable = true;
        self
    }

    /// Without values.
    pub fn keys_only(mut self) -> Self {
        self.wire.keys_only = true;
        self
    }

    /// Only how many there are.
    pub fn count_only(mut self) -> Self {
        self.wire.count_only = true;
        self
    }

    /// Only keys changed at that revision or later.
    pub fn min_mod_revision(mut self, revision: i64) -> Self {
        self.wire.min_mod_revision = revision;
        self
    }

    /// Only keys changed at that revision or earlier.
    pub fn max_mod_revision(mut self, revision: i64) -> Self {
        self.wire.max_mod_revision = revision;
        self
    }

    /// Only keys created at that revision or later.
    pub fn min_create_revision(mut self, revision: i64) -> Self {
        self.wire.min_create_revision = revision;
        self
    }

    /// Only keys created at that revision or earlier.
    pub fn max_create_revision(mut self, revision: i64) -> Self {
        self.wire.max_create_revision = revision;
        self
    }

    /// The message as it goes to etcd; fails where the request is not valid, or etcd would misunderstand it. For
    /// actors that stand in for etcd in tests.
    pub fn wire(&self) -> Result<RangeRequest> {
        let (key, range_end) = self.span.resolve()?;
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
                return Err(Error::invalid(format!("`{name}` is negative: {number}")));
            }
        }
        let empty = |min: i64, max: i64| max != 0 && min > max;
        if empty(wire.min_mod_revision, wire.max_mod_revision)
            || empty(wire.min_create_revision, wire.max_create_revision)
        {
            return Err(Error::invalid(
                "the smallest revision asked for is above the largest",
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

    async fn perform(self, client: &Client, timeout: Duration) -> Result<GetResponse> {
        let wire = self.wire()?;
        let rpc = Rpc {
            path: "/etcdserverpb.KV/Range",
            class: RpcClass::Read,
            leaderless: wire.serializable,
            waits: false,
        };
        let answer: RangeResponse = client
            .caller()
            .unary(rpc, grpc::encode(&wire)?, timeout)
            .await?;
        answer.try_into()
    }
}

impl Get<Client> {
    /// Reads a range of any size in pages of that many keys, all at one revision.
    ///
    /// Fails at the first page if the range is sorted by anything but ascending keys, or has a limit of its own.
    pub fn pages(self, keys: u32) -> Pages {
        let client = self.client.clone();
        let page = self.unbound();
        let by_key = |target| target == SortTarget::Key;
        let foreign =
            !page.order.target.is_none_or(by_key) || page.wire.sort_order() == SortOrder::Descend;
        let refused = if keys == 0 {
            Some("a page has at least one key")
        } else if foreign {
            Some("pages come in the ascending order of keys")
        } else if page.wire.limit != 0 || page.wire.count_only {
            Some("pages have a limit of their own, and they are not for counting")
        } else if !page.span.is_range() {
            Some("pages are for many keys: say `prefix`, `range` or `from_key`")
        } else {
            None
        };
        Pages::new(page.limit(i64::from(keys)).on(&client), refused)
    }
}

impl<C> Get<C> {
    /// The same, agreed on by a quorum; `None` where it is already.
    pub(super) fn linearizable(mut self) -> Option<Self> {
        std::mem::take(&mut self.wire.serializable).then_some(self)
    }

    /// The next page: from that key on, up to the same end, at that revision.
    pub(super) fn continued(mut self, from: Bytes, revision: i64) -> Result<Self> {
        let wire = self.wire()?;
        self.span = Span::key(from);
        // An end of one zero byte means no end.
        if wire.range_end[..] == [0] {
            self.span.onwards();
        } else {
            self.span.until(wire.range_end);
        }
        self.wire.revision = revision;
        Ok(self)
    }
}

/// What a [`Get`] found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GetResponse {
    /// The revision it was read at, and who answered.
    pub header: ResponseHeader,
    /// The keys and their values.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit left keys out.
    pub more: bool,
    /// How many keys there are in the range, whatever the limit.
    pub count: i64,
}

impl GetResponse {
    /// The first key and its value, where there is one.
    pub fn first(&self) -> Option<&KeyValue> {
        self.kvs.first()
    }
}

impl TryFrom<RangeResponse> for GetResponse {
    type Error = Error;

    fn try_from(answer: RangeResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            kvs: answer.kvs,
            more: answer.more,
            count: answer.count,
        })
    }
}
