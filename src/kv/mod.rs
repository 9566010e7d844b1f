//! Keys and values: get, put, delete, transactions, compaction.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::kv::{get, put, version};
//!
//! etcd.put("config/rate", "100").prev_kv().await?;
//! let page = etcd.get("config/").prefix().limit(100).sort_by_key().await?;
//! let done = etcd.txn().when([version("k").eq(0)]).then([put("k", "v")]).otherwise([get("k")]).await?;
//! assert!(done.succeeded || page.count > 0);
//! # Ok(())
//! # }
//! ```

mod compact;
mod compare;
mod delete;
mod get;
mod pages;
mod put;
mod txn;

pub use compact::{Compact, CompactResponse, compact};
pub use compare::{
    Compare, CompareKey, CompareValue, create_revision, lease, mod_revision, value, version,
};
pub use delete::{Delete, DeleteResponse, delete};
pub use get::{Get, GetResponse, get};
pub use pages::Pages;
pub use put::{Put, PutResponse, put};
pub use txn::{Op, OpResponse, Txn, TxnResponse, txn};

pub use crate::proto::{KeyValue, ResponseHeader};

use crate::{
    client::Client,
    proto,
    request::{IntoBytes, answers, header},
};

answers!(
    proto::RangeResponse,
    proto::PutResponse,
    proto::DeleteRangeResponse,
    proto::TxnResponse,
    proto::CompactionResponse,
);

impl Client {
    /// Reads a key, or with `.prefix()`, `.range(end)` or `.from_key()` many.
    pub fn get(&self, key: impl IntoBytes) -> Get<Self> {
        get(key).on(self)
    }

    /// Writes a key.
    pub fn put(&self, key: impl IntoBytes, value: impl IntoBytes) -> Put<Self> {
        put(key, value).on(self)
    }

    /// Deletes a key, or with `.prefix()`, `.range(end)` or `.from_key()` many.
    pub fn delete(&self, key: impl IntoBytes) -> Delete<Self> {
        delete(key).on(self)
    }

    /// Compares, then does one thing or another, all at one revision.
    pub fn txn(&self) -> Txn<Self> {
        txn().on(self)
    }

    /// Forgets the history before a revision.
    pub fn compact(&self, revision: i64) -> Compact<Self> {
        compact(revision).on(self)
    }
}
