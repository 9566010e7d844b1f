//! Keys and values: get, put, delete, transactions, compaction.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::kv::{Compare, get, put};
//!
//! etcd.put("config/rate", "100").prev_kv().await?;
//! let page = etcd.get("config/").prefix().limit(100).sort_by_key().await?;
//! for kv in &page.kvs {
//!     println!("{:?} = {:?}", kv.key_str(), kv.value_str());
//! }
//! let txn = etcd
//!     .txn()
//!     .when(Compare::version("owner").eq(0))
//!     .then(put("owner", "me"))
//!     .otherwise(get("owner"))
//!     .await?;
//! println!("created: {}", txn.succeeded);
//! # Ok(())
//! # }
//! ```

mod compact;
mod compare;
mod delete;
mod get;
mod key_value_stream;
mod page_size;
mod pages;
mod put;
mod revision_filter;
mod split_rejection;
mod txn;

pub use compact::{Compact, CompactResponse, compact};
pub use compare::{Compare, CompareNumber, CompareValue};
pub use delete::{Delete, DeleteResponse, delete};
pub use get::{Get, GetResponse, get};
pub use key_value_stream::KeyValueStream;
pub use pages::Pages;
pub use put::{Put, PutResponse, put};
pub use txn::{IntoConditions, IntoOps, Op, OpResponse, Txn, TxnResponse, txn};

pub use crate::proto::{KeyValue, ResponseHeader};

use crate::{
    proto,
    request::{IntoBytes, macros::response_headers},
};

response_headers!(
    proto::RangeResponse,
    proto::PutResponse,
    proto::DeleteRangeResponse,
    proto::TxnResponse,
    proto::CompactionResponse,
);
