//! Watches: changes of keys as they happen.
//!
//! A [`Watch`] delivers every revision of its range exactly once, in order and complete, over any number of reconnects.
//! Its last item is the reason why it ended. [`Watch::freshness`] returns up to which revision it is complete, and as of
//! when.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::WatchEvent;
//!
//! let mut watch = etcd.watch("config/").prefix().await?;
//! while let Some(event) = watch.next().await {
//!     match event {
//!         WatchEvent::Events(events) => println!("{}: {} changes", events.revision(), events.len()),
//!         WatchEvent::Ended(reason) => println!("{reason}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A watch notices a frozen or cut-off member by probes, and its events are late until then. A
//! [hedged](WatchRequest::hedged) watch runs on two members at once and delivers each revision from the member that
//! sends it first: `etcd.watch("config/").prefix().hedged().await?`.

pub(crate) mod engine;
mod event;
mod freshness;
mod subscribe_watch;
mod watch_handle;
mod watch_request;
mod watch_view;

pub use event::{Resynced, RevisionEvents, WatchEnd, WatchEvent};
pub use freshness::{Freshness, WatchStatus};
pub use subscribe_watch::SubscribeWatch;
pub use watch_handle::{Watch, WatchHandle};
pub use watch_request::WatchRequest;

use crate::request::IntoBytes;

/// Returns a request to watch a key, or many keys with `.prefix()`, `.range(end)` or `.from_key()`, without a client:
/// send it to the [`Etcd`](crate::Etcd) actor with `.deliver_to(recipient)`, or bind it with `.on(&client)`.
pub fn watch_keys(key: impl IntoBytes) -> WatchRequest<()> {
    WatchRequest::new((), key.into_bytes())
}
