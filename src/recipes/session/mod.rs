//! A session: a lease that is kept alive, and the keys that are bound to it.
//!
//! Dropping or closing a session revokes its lease, and etcd deletes the keys. [`Session::lost`] resolves when the
//! lease is lost.
//!
//! With [`heal`](SessionBuilder::heal), a session replaces a lost lease: it grants a new one and puts the keys again.
//! It does not overwrite a key that another client has put in the meantime; [`SessionEvent::Healed`] lists such keys. A
//! key that cannot be put, for example because its permission was withdrawn, does not affect the others:
//! [`SessionEvent::KeysNotRestored`] reports it with the reason, and the session retries it.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//!
//! let session = etcd.session(Duration::from_secs(5)).heal().await?;
//! session.put("service/a", "10.0.0.1").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! A supervised `SessionActor` runs on the client's thread, one per session. It receives the events of the lease and
//! `EndSession` from the handle. It sends [`SessionEvent`]s to subscribers and reports the status of the lease to the
//! locks and elections of the session. Its state is shared with the handle, so an actor that is restarted after a panic
//! continues where it was: it receives the loss of a lease again and starts healing from the beginning.

mod actor;
mod healing;
mod key_restoration;
mod late_keys;
mod local_mutexes;
mod messages;
mod own_leases;
mod session_builder;
mod session_handle;
mod session_lease;
mod session_state;

pub use messages::SessionEvent;
pub use session_builder::SessionBuilder;
pub use session_handle::Session;
pub use session_state::UnrestoredKey;

pub(super) use late_keys::{FollowLateKey, LateKey};
pub(super) use local_mutexes::{LocalMutex, LocalMutexGuard};
pub(super) use own_leases::OwnLeases;
pub(super) use session_lease::SessionLease;
pub(super) use session_state::SessionState;

use crate::error::{Error, ErrorKind};

/// Turns etcd's "lease not found" into [`ErrorKind::SessionLost`], for writes that are bound to a session's lease.
pub(super) fn session_lost_if_no_lease(error: Error) -> Error {
    if error.kind() != ErrorKind::LeaseNotFound {
        return error;
    }
    let reason = "etcd no longer has the lease of the session";
    Error::new(ErrorKind::SessionLost, error.outcome(), reason).with_source(error)
}
