//! Copying a prefix to another cluster, or to another prefix, and keeping the copy up to date.
//!
//! A [`Mirror`] first copies all keys as of one revision of the source, the *base*, and then follows: it applies every
//! later revision, in order. How far it is, is stored in the destination, the *checkpoint*, in the same transactions as
//! the copied keys. So a mirror that crashes, or loses one of the clusters, continues exactly where it was.
//!
//! ```no_run
//! # async fn example(main: actix_etcd::Client, backup: actix_etcd::Client) -> actix_etcd::Result<()> {
//! let mirror = main
//!     .mirror("app/")
//!     .to(&backup, "copy/of/app/")
//!     .checkpoint("mirrors/app")
//!     .start()
//!     .await?;
//! let written = main.put("app/rate", "100").await?;
//! mirror.applied(written.header.revision).await?; // the backup has the key `copy/of/app/rate`
//! println!("{:?} behind", mirror.lag());
//! println!("ended: {:?}", mirror.ended().await);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! - **Every revision once, in order, and whole.** Each change of the source is written exactly once, after all earlier
//!   changes. Readers of the destination see all changes of a revision of the source at once, and several small revisions
//!   may become one revision of the destination. Two limits: while the base is copied, the destination has keys of
//!   different revisions ([`MirrorState::CopyingBase`]), and a revision that does not fit into one transaction of the
//!   destination is split (with etcd's default limits: more than 4,032 keys, or more than about 1.5 MiB). The checkpoint
//!   shows that it is incomplete until its last part.
//! - **Unknown outcomes are resolved.** Each transaction has the condition that the checkpoint was not changed since the
//!   last one. Attempts whose response was lost cannot be applied twice or late; the checkpoint shows which one was.
//! - **One writer.** If a second mirror starts with the same checkpoint, the first one ends with
//!   [`CheckpointTaken`](crate::ErrorKind::CheckpointTaken) at its next write: the newest mirror wins. To run one mirror
//!   on several nodes, start it in a [singleton](crate::recipes::singleton).
//! - **Compaction.** If the source has compacted a revision that the mirror has not read, for example because it was
//!   stopped for long, the mirror copies the base again as a difference: equal keys are not written. Values that a key
//!   had in between are not copied.
//! - **A source that lost data does not delete the copy.** If the source is at an older revision than the checkpoint,
//!   because it was restored from a backup, the mirror ends with
//!   [`RevisionRegressed`](crate::ErrorKind::RevisionRegressed) and writes nothing:
//!   [`start_over`](MirrorBuilder::start_over) replaces the copy. A restored source that has passed that revision before
//!   the mirror reads it is not detected.
//!
//! # What is not copied
//! Revisions and versions of keys: the destination counts its own. Leases: a copied key has none, and is deleted when
//! the key of the source is.
//!
//! Other writers must not change keys under the destination's prefix: the mirror does not notice it, and deletes such keys
//! when it copies the base again. With an empty prefix, these include the locks and
//! [markers](crate::layers::exactly_once) of other clients of the destination. Two mirrors in opposite directions copy each
//! change back and forth forever.
//!
//! # Permissions
//! With authentication, the user of the source needs permission to read its prefix, and the user of the destination to
//! read and write its prefix and the checkpoint.
//!
//! # The checkpoint
//! A key of the destination, with a JSON value: the id of the source's cluster, both prefixes (each with the namespace
//! of its client), the revision that is applied (`revision`), or how far the base is (`base`), and a random number of
//! the mirror that wrote it last. Only `start_over` uses a checkpoint of another cluster or of other prefixes. While no
//! key changes, the checkpoint moves once a minute, so that it does not fall behind compactions.
//!
//! # Files
//! | file | content |
//! |---|---|
//! | `mirror_builder`, `mirror_handle`, `mirror_progress` | the options, the handle, and what it reports |
//! | `claim_checkpoint` | checks both clusters, and makes the checkpoint the mirror's own |
//! | `mirror_task` | the task: base, then changes |
//! | `base_copy` | copies the difference of all keys |
//! | `change_queue` | decides which changes form a transaction |
//! | `destination_writer` | writes a transaction with the checkpoint, and resolves unknown outcomes |
//! | `mirror_checkpoint`, `mirror_route` | the encoding of the checkpoint, and the mapping of keys |
//! | `stop_signal` | the request to stop |

mod base_copy;
mod change_queue;
mod claim_checkpoint;
mod destination_writer;
mod mirror_builder;
mod mirror_checkpoint;
mod mirror_handle;
mod mirror_progress;
mod mirror_route;
mod mirror_task;
mod stop_signal;

pub use mirror_builder::{ExistingKeys, MirrorBuilder, MirrorFrom};
pub use mirror_handle::Mirror;
pub use mirror_progress::{MirrorEnd, MirrorLag, MirrorProgress, MirrorSide, MirrorState};

pub use crate::client::subscription::Subscription;
