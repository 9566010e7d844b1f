//! Watching keys.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::WatchEvent;
//!
//! let mut watch = etcd.watch("config/").prefix().await?;
//! while let Some(item) = watch.next().await {
//!     match item {
//!         WatchEvent::Events(events) => println!("{}: {} changes", events.revision(), events.len()),
//!         WatchEvent::Ended(why) => println!("{why}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub(crate) mod engine;
mod event;
mod subscribe;
mod watch_handle;
mod watch_request;

pub use event::{Resynced, RevisionEvents, WatchEnd, WatchEvent};
pub use subscribe::SubscribeWatch;
pub use watch_handle::{Watch, WatchHandle};
pub use watch_request::WatchRequest;

use crate::request::IntoBytes;

/// A watch of a key, or with `.prefix()`, `.range(end)` or `.from_key()` of many, that is bound to no client yet: to be
/// opened by a message to the actor [`Etcd`](crate::Etcd), or bound with `.on(&client)`.
pub fn watch_keys(key: impl IntoBytes) -> WatchRequest<()> {
    WatchRequest::new((), key.into_bytes())
}
