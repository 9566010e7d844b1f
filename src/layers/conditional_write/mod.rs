//! Writes of one key that depend on its current state: create, update, remove, modify.
//!
//! Each returns an enum that says what happened, and with the key as it is if the write was not applied:
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::layers::conditional_write::{CreateOutcome, UpdateOutcome};
//!
//! let revision = match etcd.create("config/rate", "100").await? {
//!     CreateOutcome::Created { revision } => revision,
//!     CreateOutcome::Exists(kv) => kv.mod_revision,
//! };
//! match etcd.update("config/rate", "200").at(revision).await? {
//!     UpdateOutcome::Updated { revision } => println!("updated at revision {revision}"),
//!     UpdateOutcome::Conflict(Some(kv)) => println!("somebody has set it to {:?}", kv.value_str()),
//!     UpdateOutcome::Conflict(None) => println!("somebody has removed it"),
//! }
//! # Ok(())
//! # }
//! ```
//! [`Client::modify`](crate::Client::modify) reads the key, applies a function, writes the result back if the key has not
//! changed meanwhile, and starts again if it has:
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let counted = etcd
//!     .modify("visits", |current| {
//!         let visits = current.and_then(|kv| kv.value_str().ok()?.parse().ok()).unwrap_or(0_u64);
//!         (visits + 1).to_string()
//!     })
//!     .await?;
//! println!("written: {:?}", counted.revision());
//! # Ok(())
//! # }
//! ```
//!
//! All of them are applied [exactly once](super::exactly_once), or surely not: unknown outcomes are found out by markers.
//! `without_marker()` turns this off for one write; then an error can have the outcome
//! [`Unknown`](crate::Outcome::Unknown), as that of a plain transaction. `fenced_by` applies a write only while a lock or a
//! leadership is held.

mod change;
mod create;
mod modify;
mod outcomes;
mod remove;
mod update;
mod write_if;

pub use self::{
    change::{Change, IntoChange},
    create::{Create, create},
    modify::{Modify, modify},
    outcomes::{CreateOutcome, ModifyOutcome, RemoveOutcome, UpdateOutcome},
    remove::{Remove, remove},
    update::{Update, update},
};
