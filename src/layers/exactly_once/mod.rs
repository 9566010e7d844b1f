//! Writes that are applied exactly once, or surely not.
//!
//! If the connection breaks between a write and its response, nobody knows whether the write was applied: its error has
//! [`Outcome::Unknown`]. `exactly_once()` on a put, a delete or a transaction finds it out:
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let applied = etcd.put("jobs/7", "done").exactly_once().await?;
//! println!("applied at revision {}", applied.revision);
//! # Ok(())
//! # }
//! ```
//! The result is one of
//! - *applied, at this revision*: an [`Applied`],
//! - *not applied, and never will be*: an error with [`Outcome::NotSent`] or [`Outcome::Rejected`],
//! - an error with [`Outcome::Unknown`], only if the cluster was not reachable until the deadline, or if the marker was
//!   deleted meanwhile: because its lease ended during an outage, because the client was shut down, or by another program.
//!   The [source](std::error::Error::source) of the error has the reason.
//!
//! A write that was not applied for a temporary reason is sent again until the deadline. This is safe for any write. An
//! attempt gets three fifths of the remaining time; the rest is for finding out its outcome.
//!
//! # How it works
//! Each write in flight uses a *slot*: a key `<prefix><lease>/<number>` of the client. The write replaces the value of
//! the slot, its *marker*, in the same transaction, under the condition that the slot still has the marker of the previous
//! write. If the response is lost, the client tries to replace the marker by another one:
//! - It succeeds: the write was not applied. If a copy of the write arrives later, for example from the socket of a frozen
//!   member, its condition fails.
//! - The slot already has the marker of the write: it was applied, at the mod revision of the slot.
//!
//! The same is done in the background for a write whose future is dropped, so it is not applied at some later time.
//!
//! Slots are created when they are first needed, and used again by later writes. They are bound to a lease of the client
//! with a TTL of 30 s, which is granted for the first such write, and revoked at the end of the client. When the lease
//! ends, the slots are deleted. Then late copies fail their condition as well.
//!
//! # Costs
//! One put of a few bytes in the same transaction, one kept lease per client, and about as many slots as there were writes
//! in flight at once. etcd counts the marker and nested transactions as operations: with the default limit of 128
//! (`--max-txn-ops`), 127 remain for the write, 126 if it has conditions, reads or a fence, 124 with a fence and one of the
//! others. After a lost response or a rejection, one or two more requests are sent.
//!
//! Reads and watches of all keys include the markers. If the database exceeds its quota, all writes with markers are
//! refused, also deletes.
//!
//! # Permissions
//! With authentication, the user needs permission to read and write the prefix of the markers,
//! [`ClientBuilder::marker_prefix`](crate::ClientBuilder::marker_prefix). Without it, the write fails with
//! [`ErrorKind::MarkersDenied`](crate::ErrorKind::MarkersDenied), and nothing is written.
//!
//! # Fencing
//! [`fenced_by`](ExactlyOnce::fenced_by) applies a write only while a lock or a leadership is held:
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let mutex = etcd.mutex("locks/report").await?;
//! let guard = mutex.lock().await?;
//! etcd.put("reports/latest", "…").exactly_once().fenced_by(&guard).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Outcome::Unknown`]: crate::Outcome::Unknown
//! [`Outcome::NotSent`]: crate::Outcome::NotSent
//! [`Outcome::Rejected`]: crate::Outcome::Rejected

mod exactly_once_request;
mod fence;
mod held_slot;
mod marked_txn;
mod marked_write;
mod marker_slot;
mod reserved_prefix;
mod slot_pool;

pub use self::{
    exactly_once_request::{Applied, ExactlyOnce, ExactlyOnceWrite},
    fence::Fence,
    marked_write::MarkingClient,
};
pub(super) use self::{fence::Fences, marked_write::MarkedWrite};
