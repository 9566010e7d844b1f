//! Values of a type of the application instead of bytes.
//!
//! [`Typed`] is the set of keys with a prefix whose values have one type and one [encoding](super::codec). Its writes
//! return what happened as an enum, with the key as it is now, and are applied [exactly once](super::exactly_once).
//!
//! With the feature `serde`, for the codec `Json`:
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::layers::{codec::Json, typed::{TypedCreateOutcome, TypedUpdateOutcome}};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct User {
//!     name: String,
//!     visits: u64,
//! }
//!
//! let users = etcd.typed::<User, Json>("users/");
//! match users.create("7", &User { name: "Ada".into(), visits: 0 }).await? {
//!     TypedCreateOutcome::Created { revision } => println!("created at revision {revision}"),
//!     TypedCreateOutcome::Exists(current) => println!("{} has the id already", current?.value.name),
//! }
//! if let Some(mut ada) = users.get("7").await? {
//!     ada.value.name = "Ada Lovelace".into();
//!     match users.update(&ada).await? {
//!         TypedUpdateOutcome::Updated { revision } => println!("updated at revision {revision}"),
//!         TypedUpdateOutcome::Conflict(_) => println!("somebody else changed the user meanwhile"),
//!     }
//! }
//! users
//!     .modify("7", |user| {
//!         let user = user.unwrap_or(User { name: "unknown".into(), visits: 0 });
//!         User { visits: user.visits + 1, ..user }
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Lists and watches
//! A value that does not decode is an item of a list or a watch, an [`Undecoded`] with its key, revision and error. It
//! never ends them: one bad value does not hide the others.
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::layers::{codec::Utf8, typed::TypedWatchEvent};
//!
//! let limits = etcd.typed::<u32, Utf8>("limits/");
//! for limit in limits.list().await? {
//!     match limit {
//!         Ok(limit) => println!("{:?} = {}", limit.id_str(), limit.value),
//!         Err(undecoded) => println!("{undecoded}"),
//!     }
//! }
//! // All limits, then every change.
//! let mut watch = limits.list_and_watch().await?;
//! while let Some(event) = watch.next().await {
//!     match event {
//!         TypedWatchEvent::Listed(listing) => println!("{} limits", listing.entries().count()),
//!         TypedWatchEvent::Changed(revision) => {
//!             for change in &revision.changes {
//!                 println!("{:?} is now {:?}", change.key(), change.entry().map(|limit| limit.value));
//!             }
//!         }
//!         TypedWatchEvent::Ended(reason) => println!("ended: {reason}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//! To an actor: `limits.list_and_watch().deliver_to(recipient)`.
//!
//! # Ids and keys
//! Methods take an *id*, the key without the prefix; end the prefix with a separator, such as `/`. [`Entry::key`] is the
//! whole key, [`Entry::id`] the id.
//!
//! # Errors
//! If a value cannot be encoded, the request fails with [`ErrorKind::CodecFailed`](crate::ErrorKind::CodecFailed), the
//! outcome is [`NotSent`](crate::Outcome::NotSent), and nothing is written. `get` fails with the same kind if the value
//! does not decode; so does `modify`, which then writes nothing.
//!
//! # Messages
//! Without a client, the requests are messages to the actor [`Etcd`](crate::Etcd):
//! `etcd.send(typed::<u32, Utf8>("limits/").get("upload"))`.

mod typed_entry;
mod typed_keys;
mod typed_reads;
mod typed_request;
mod typed_watch;
mod typed_writes;

pub use typed_entry::{Decoded, Entry, Undecoded};
pub use typed_keys::{Typed, typed};
pub use typed_reads::{EntryStream, Listing, TypedGet, TypedList};
pub use typed_watch::{
    KeyChanged, SubscribeTyped, TypedChanges, TypedResynced, TypedWatch, TypedWatchEvent,
    TypedWatchRequest,
};
pub use typed_writes::{
    TypedChange, TypedCreate, TypedCreateOutcome, TypedModify, TypedModifyOutcome, TypedPut,
    TypedRemove, TypedRemoveOutcome, TypedUpdate, TypedUpdateOutcome,
};
