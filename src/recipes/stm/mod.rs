//! Software transactional memory: a closure reads and writes any keys, and its writes are applied together or not at
//! all.
//!
//! The closure may run several times. Each run is an attempt: its reads are recorded, and its writes are collected and
//! sent in one transaction at the end, on the condition that no other client has changed what the attempt relies on.
//! Otherwise that is a conflict: nothing is written, and the closure runs again after a growing delay. So the closure must
//! have no effects besides those of its [`Transaction`]; compute a result, return it, and act on it afterwards.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::{Error, recipes::stm::Transaction};
//!
//! #[derive(Debug)]
//! enum TransferError {
//!     TooPoor,
//!     Etcd(Error),
//! }
//!
//! impl From<Error> for TransferError {
//!     fn from(error: Error) -> Self {
//!         Self::Etcd(error)
//!     }
//! }
//!
//! async fn balance(tx: &Transaction, account: &str) -> Result<i64, Error> {
//!     let value = tx.get(account).await?.unwrap_or_default();
//!     Ok(String::from_utf8_lossy(&value).parse().unwrap_or_default())
//! }
//!
//! let transferred = etcd
//!     .stm()
//!     .run(|tx| async move {
//!         let (ann, bob) = (balance(&tx, "ann").await?, balance(&tx, "bob").await?);
//!         if ann < 10 {
//!             return Err(TransferError::TooPoor); // nothing is written
//!         }
//!         tx.put("ann", (ann - 10).to_string());
//!         tx.put("bob", (bob + 10).to_string());
//!         Ok(ann - 10)
//!     })
//!     .await;
//! println!("left: {transferred:?}");
//! # Ok(())
//! # }
//! ```
//!
//! # Levels of isolation
//! They are those of the Go client. A stricter level has more conflicts.
//!
//! | level | an attempt reads | a commit requires | possible |
//! |---|---|---|---|
//! | [`SerializableSnapshot`](Isolation::SerializableSnapshot) | one snapshot | no key that was read, and no key that is written, has changed since the snapshot | a key that the closure does not read has changed |
//! | [`Serializable`](Isolation::Serializable) | one snapshot | no key that was read has changed | a write replaces a newer value that the closure has not read |
//! | [`RepeatableReads`](Isolation::RepeatableReads) | each key once, when it is first read | no key that was read has changed | an attempt sees keys at different revisions; it is not committed, but an error that its closure returns can rest on them |
//! | [`ReadCommitted`](Isolation::ReadCommitted) | the newest value, on each read | nothing | an update of another client is lost; a result or an error can rest on keys at different revisions |
//!
//! At every level, reads return committed values and the attempt's own writes. A prefix that was read counts as changed
//! also if a key was added to it or removed from it. So do not read a prefix that covers the
//! [marker prefix](crate::ClientBuilder::marker_prefix): each [marked write](crate::layers::exactly_once) of any client
//! would be a conflict. The deletion of a key that is only written is no conflict.
//!
//! An attempt that only reads writes nothing. With a snapshot, it also needs no commit, because its reads are consistent
//! already: the result is the state at the first read.
//!
//! Differences from the Go client: the first read of each key is linearizable at every level (Go reads
//! possibly stale values at the two weaker levels); `ReadCommitted` reads again each time; conflicts are retried with
//! delays and within bounds; a commit is applied [exactly once](crate::layers::exactly_once), also if its response is lost.
//! A conflict does not read the keys for the next attempt in advance: after the delay these values would be old,
//! and a cause of the next conflict.
//!
//! # Actors
//! A closure is not a message. An actor runs it in a future of its own, or sends a message of yours to the actor
//! [`Etcd`](crate::Etcd):
//! ```no_run
//! use std::pin::Pin;
//!
//! use actix_etcd::{Client, Error, actor::EtcdRequest};
//!
//! #[derive(Clone, actix::Message)]
//! #[rtype(result = "actix_etcd::Result<()>")]
//! struct Rename {
//!     from: String,
//!     to: String,
//! }
//!
//! impl EtcdRequest<Client> for Rename {
//!     type Response = ();
//!
//!     fn name(&self) -> &'static str {
//!         "Rename"
//!     }
//!
//!     fn send_with(self, etcd: &Client) -> Pin<Box<dyn Future<Output = actix_etcd::Result<()>> + Send>> {
//!         let stm = etcd.stm();
//!         Box::pin(async move {
//!             stm.run(async |tx| {
//!                 if let Some(value) = tx.get(&self.from).await? {
//!                     tx.delete(&self.from);
//!                     tx.put(&self.to, value);
//!                 }
//!                 Ok::<_, Error>(())
//!             })
//!             .await
//!         })
//!     }
//! }
//! ```

mod commit;
mod read_set;
mod stm_builder;
mod transaction;
mod write_set;

pub use stm_builder::Stm;
pub use transaction::Transaction;

/// What a [`Transaction`] is protected from. See the [table](crate::recipes::stm#levels-of-isolation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// Reads one snapshot. Conflicts if a key that was read or is written has changed since.
    #[default]
    SerializableSnapshot,
    /// Reads one snapshot. Conflicts if a key that was read has changed since.
    Serializable,
    /// Reads each key once. Conflicts if a key that was read has changed since.
    RepeatableReads,
    /// Reads the newest values. Never conflicts.
    ReadCommitted,
}

impl Isolation {
    /// Whether all reads of an attempt are of one revision.
    fn has_snapshot(self) -> bool {
        matches!(self, Self::SerializableSnapshot | Self::Serializable)
    }
}
