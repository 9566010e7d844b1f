//! Keys mirrored in memory: reads without a request.
//!
//! A [`Cache`] has all keys with a prefix. It reads them at one revision and then follows a watch. Reads are local and
//! take no lock, a [snapshot](Cache::snapshot) has all keys at one revision, and an idle cache is confirmed to be
//! current about every second ([`Cache::freshness`]).
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::layers::codec::Utf8;
//!
//! let limits = etcd.cache("limits/").await?;
//! if let Some(entry) = limits.get("limits/alice") {
//!     println!("{:?} since revision {}", entry.value_str(), entry.mod_revision());
//! }
//! for entry in limits.range("limits/a".."limits/c") {
//!     println!("{:?}: {}", entry.key_str(), entry.decode::<u32, Utf8>()?);
//! }
//! // As recent as every write before, by any client:
//! let limit = limits.typed::<u32, Utf8>().get_consistent("limits/alice").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Changes
//! A stream returns the sum of the changes since its last update, with the entries before, and it loses none: not
//! through compactions, restores of the cluster and long outages.
//!
//! ```no_run
//! # async fn example(limits: actix_etcd::layers::cache::Cache) {
//! use actix_etcd::layers::cache::{CacheChange, CacheEvent};
//!
//! let mut changes = limits.changes();
//! while let Some(CacheEvent::Updated(update)) = changes.next().await {
//!     for change in &update {
//!         match change {
//!             CacheChange::Created(entry) => println!("created {entry:?}"),
//!             CacheChange::Changed { previous, current } => println!("{previous:?} -> {current:?}"),
//!             CacheChange::Deleted(entry) => println!("deleted {entry:?}"),
//!             _ => {}
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! To an actor: [`Cache::deliver_to`], or as a message to the actor [`Etcd`](crate::Etcd):
//! [`cache`](fn@cache)`("limits/").deliver_to(recipient)`. The message `cache("limits/")` returns a [`Cache`].
//!
//! # Guarantees
//! - A reader never sees a part of a revision. The revision of the content never goes back, unless the cluster itself
//!   was restored from a backup.
//! - During an outage the cache serves its last state; [`CacheFreshness::behind`] is the reason. Afterwards it equals
//!   a fresh read, also if revisions were compacted meanwhile: it then reads all keys again and keeps those that
//!   are unchanged.
//! - [`Cache::get_consistent`] is never older than a write that was acknowledged before. After a restore from a
//!   backup, this holds once the client can detect it: as long as the cluster is at a lower revision than the cache.
//! - Memory is bounded by [`max_bytes`](CacheBuilder::max_bytes). A snapshot that the application keeps, and a slow
//!   reader of changes, keep the entries of that revision in addition.
//! - The content is kept up to date on the client's thread: also while the application blocks its own threads.
//!
//! # Start without etcd
//! With a [file](CacheBuilder::snapshot_file), a process starts also while etcd is unreachable. Connect the client with
//! [`connect_lazy`](crate::ClientBuilder::connect_lazy), which does not wait for a member:
//!
//! ```no_run
//! # async fn example() -> actix_etcd::Result<()> {
//! use actix_etcd::Client;
//!
//! let etcd = Client::builder(["http://10.0.0.1:2379"]).connect_lazy().await?;
//! let limits = etcd.cache("limits/").snapshot_file("/var/lib/me/limits.cache").await?;
//! if let Some(lag) = limits.freshness().behind {
//!     println!("stale: {lag}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A single typed value, or one built from several keys, is a [`LiveConfig`](crate::layers::live_config::LiveConfig).

mod cache_builder;
mod cache_change;
mod cache_entry;
pub(super) mod cache_file;
mod cache_freshness;
mod cache_handle;
mod cache_snapshot;
mod cache_state;
mod cache_task;
mod cached_range;
mod entry_tree;
pub(super) mod file_writer;
mod range_load;
mod revision_reads;
mod typed_cache;

pub(super) use cache_builder::CacheStart;
pub use cache_builder::{CacheBuilder, SubscribeCache, cache};
pub use cache_change::{CacheChange, CacheChanges, CacheDiff, CacheEvent, CacheUpdate};
pub use cache_entry::CacheEntry;
pub use cache_freshness::{CacheFreshness, CacheLag};
pub use cache_handle::Cache;
pub use cache_snapshot::{CacheRange, CacheSnapshot};
pub(super) use cached_range::CachedRange;
pub use typed_cache::{TypedCache, TypedRange};

pub use crate::client::subscription::Subscription;
