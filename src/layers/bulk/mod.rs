//! Writing any number of keys.
//!
//! The cost of a request to etcd depends little on its number of keys: one transaction with 128 puts costs little more than
//! one put. A [`Bulk`] packs
//! writes into transactions, as large as the server allows, and keeps several of them in flight.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let mut bulk = etcd
//!     .bulk()
//!     .on_progress(|done| println!("{} keys, {:.0}/s", done.written, done.keys_per_sec()))
//!     .start();
//! for number in 0..100_000 {
//!     bulk.put(format!("import/{number:06}"), "value").await?; // waits while 16 transactions are in flight
//! }
//! bulk.delete("import/marker").await?;
//! match bulk.finish().await {
//!     Ok(report) => println!("{} keys at revision {}", report.written, report.revision),
//!     Err(failed) => println!("resume at line {}: {failed}", failed.report().resume_point),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Contract
//! - **Atomic only per transaction.** Other clients see the writes in steps, each with a revision of its own. Steps can
//!   appear in another order than in the input, except for writes of the same key.
//! - **Two writes of one key keep their order.** A write waits until the earlier write of the same key is complete. An
//!   attempt whose response was lost cannot be applied after its repetition, because each transaction has a condition
//!   on the revision of one of its keys; so the user needs the permission to read the keys. Exceptions: a bulk with
//!   [`OnUnknown::Report`], and a transaction whose response was lost and whose first put key is deleted while a copy of
//!   the transaction is still in flight.
//! - **Bounded memory and backpressure.** [`put`](Bulk::put) waits while
//!   [`max_in_flight`](BulkBuilder::max_in_flight) transactions are in flight. A transaction is sent when it is full, or by
//!   [`flush`](Bulk::flush) or [`finish`](Bulk::finish).
//! - **Failures.** Transient errors, such as a lost member or an election, are retried for
//!   [`give_up_after`](BulkBuilder::give_up_after). A transaction that the server refuses as too large is split, and
//!   later ones are smaller. If one write is the reason for a rejection (a value that is too large, a missing
//!   permission, a lease that does not exist), this write fails and the others go on. Reasons that concern all writes
//!   (no space, a shutdown) stop the bulk: `put` and `finish` return them.
//! - **Unknown outcomes.** A transaction whose response was lost may have been applied. [`OnUnknown`] is the reaction:
//!   repeat it (the default), read its keys and compare, or report it.
//! - **Resumable.** [`BulkReport::resume_point`] is the number of writes at the start of the input that are all known
//!   to be written, whatever failed later. [`BulkReport::resume_key`] is the key of the last of them: a sorted input can be
//!   resumed after it.
//!
//! # Files
//! | file | content |
//! |---|---|
//! | `bulk_builder`, `bulk_handle`, `bulk_write` | the options, the sink, and its items |
//! | `bulk_progress`, `bulk_report` | progress while it runs, and the result |
//! | `chunk_plan` | decides which writes form a transaction, and when it may be sent |
//! | `chunk_delivery`, `failure_reaction` | sends a transaction, and decides what follows a failure |
//! | `written_prefix` | how far the input is known to be written |

mod bulk_builder;
mod bulk_handle;
mod bulk_progress;
mod bulk_report;
mod bulk_write;
mod chunk_delivery;
mod chunk_plan;
mod failure_reaction;
mod written_prefix;

pub use bulk_builder::{BulkBuilder, OnUnknown};
pub use bulk_handle::Bulk;
pub use bulk_progress::{BulkProgress, BulkProgressUpdates};
pub use bulk_report::{BulkFailed, BulkPartResult, BulkReport};
pub use bulk_write::BulkWrite;
