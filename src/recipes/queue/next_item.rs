//! Finds the items that are taken next.

use std::collections::HashSet;

use bytes::Bytes;

use super::queue_keys::QueueKeys;
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Get, GetResponse, KeyValue, OpResponse, get},
};

/// Items that are read beyond those that are taken.
const WINDOW: i64 = 16;

/// In which order items are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TakeOrder {
    /// The oldest first.
    #[default]
    Age,
    /// The smallest priority first, and of the same priority the oldest first.
    Priority,
}

/// An item that nobody has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadyItem {
    pub(super) key: Bytes,
    pub(super) create_revision: i64,
    /// Changes when the item is taken.
    pub(super) mod_revision: i64,
    /// How often the item was taken.
    pub(super) takes: i64,
}

impl From<&KeyValue> for ReadyItem {
    fn from(kv: &KeyValue) -> Self {
        Self {
            key: kv.key.clone(),
            create_revision: kv.create_revision,
            mod_revision: kv.mod_revision,
            takes: kv.version - 1,
        }
    }
}

/// Returns the items to take next, in this order, or none if none is ready. There may be more after them.
pub(super) async fn next_items(
    client: &Client,
    keys: &QueueKeys,
    order: TakeOrder,
) -> Result<Vec<ReadyItem>> {
    let mut limit = WINDOW;
    loop {
        let items = get(&keys.items).prefix().keys_only().limit(limit);
        let items = match order {
            TakeOrder::Age => items.sort_by_create_revision(),
            // The order of the keys is that of the priorities.
            TakeOrder::Priority => items,
        };
        let (items, claims) = read(client, keys, items).await?;
        let mut ready = ready_items(keys, order, &items.kvs, &claims);
        let Some(first) = ready.first() else {
            if !items.more {
                return Ok(Vec::new());
            }
            // All of them are taken. There are not more taken items than claims.
            limit = claims.count + WINDOW;
            continue;
        };
        let rank = |key: &Bytes| keys.priority_of(key);
        let last = items.kvs.last().and_then(|kv| rank(&kv.key));
        let priority = rank(&first.key);
        if order == TakeOrder::Age || !items.more || last.is_none() || last != priority {
            // Items of the last priority may be incomplete.
            ready.retain(|item| order == TakeOrder::Age || rank(&item.key) == priority);
            return Ok(ready);
        }
        // Older items of this priority can be among those that were not read.
        let class = keys.class(priority.unwrap_or_default());
        let oldest = get(class).prefix().keys_only().limit(claims.count + WINDOW);
        let (items, claims) = read(client, keys, oldest.sort_by_create_revision()).await?;
        let oldest = ready_items(keys, order, &items.kvs, &claims);
        if !oldest.is_empty() {
            return Ok(oldest);
        }
    }
}

/// Reads items and all claims at one revision.
async fn read(client: &Client, keys: &QueueKeys, items: Get) -> Result<(GetResponse, GetResponse)> {
    let claims = get(&keys.claims).prefix().keys_only();
    let mut responses = client
        .txn()
        .then([items, claims])
        .await?
        .responses
        .into_iter();
    if let (Some(OpResponse::Get(items)), Some(OpResponse::Get(claims))) =
        (responses.next(), responses.next())
    {
        return Ok((items, claims));
    }
    let reason = "the response of the transaction does not match its reads";
    Err(Error::new(ErrorKind::Protocol, Outcome::NotSent, reason))
}

fn ready_items(
    keys: &QueueKeys,
    order: TakeOrder,
    items: &[KeyValue],
    claims: &GetResponse,
) -> Vec<ReadyItem> {
    let taken: HashSet<&[u8]> = claims.kvs.iter().map(|kv| &kv.key[..]).collect();
    let is_ready = |kv: &&KeyValue| !taken.contains(&keys.claim_of(&kv.key)[..]);
    let rank = |kv: &KeyValue| match order {
        TakeOrder::Age => None,
        TakeOrder::Priority => keys.priority_of(&kv.key),
    };
    // An item without a priority comes last.
    let place = |kv: &&KeyValue| (rank(kv).map_or(u32::MAX, u32::from), kv.create_revision);
    let mut ready: Vec<_> = items.iter().filter(is_ready).collect();
    ready.sort_by_key(place);
    ready.into_iter().map(ReadyItem::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ResponseHeader;

    fn kv(key: &'static str, create_revision: i64) -> KeyValue {
        KeyValue {
            key: key.into(),
            create_revision,
            version: 1,
            ..KeyValue::default()
        }
    }

    fn first(order: TakeOrder, items: &[KeyValue], claims: &[&'static str]) -> Option<Bytes> {
        let claims = GetResponse {
            header: ResponseHeader::default(),
            kvs: claims.iter().map(|key| kv(key, 1)).collect(),
            more: false,
            count: 0,
        };
        let keys = QueueKeys::new(b"q").unwrap();
        let ready = ready_items(&keys, order, items, &claims);
        ready.into_iter().next().map(|item| item.key)
    }

    #[test]
    fn oldest_item_without_claim_is_next() {
        let items = [kv("q/3", 7), kv("q/2", 8), kv("q/1", 9)];
        let next = |claims: &[&'static str]| first(TakeOrder::Age, &items, claims);
        assert_eq!(next(&[]).unwrap(), "q/3");
        assert_eq!(next(&["__q/claims/3", "__q/claims/1"]).unwrap(), "q/2");
        assert_eq!(
            next(&["__q/claims/3", "__q/claims/2", "__q/claims/1"]),
            None
        );
    }

    #[test]
    fn smallest_priority_is_next() {
        let items = [
            kv("q/00002/a", 4),
            kv("q/00001/b", 9),
            kv("q/00001/a", 10),
            kv("q/x", 1),
        ];
        let next = |claims: &[&'static str]| first(TakeOrder::Priority, &items, claims);
        assert_eq!(next(&[]).unwrap(), "q/00001/b");
        assert_eq!(next(&["__q/claims/00001/b"]).unwrap(), "q/00001/a");
        let claims = [
            "__q/claims/00001/a",
            "__q/claims/00001/b",
            "__q/claims/00002/a",
        ];
        assert_eq!(next(&claims).unwrap(), "q/x");
        assert_eq!(first(TakeOrder::Age, &items, &[]).unwrap(), "q/x");
    }
}
