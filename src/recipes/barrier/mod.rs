//! A barrier: a key in etcd for whose deletion everybody waits.
//!
//! [`Barrier::hold`] creates the key, [`Barrier::release`] deletes it, and [`Barrier::wait`] returns as soon as the key
//! does not exist.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let migration = etcd.barrier("migration");
//! migration.hold().await?;
//! // … meanwhile, other nodes wait with `etcd.barrier("migration").wait().await?` …
//! migration.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! An actor waits by messages: `barrier.wait().deliver_to(recipient)` sends it a [`BarrierEvent`].
//!
//! # The key
//! The key is the name of the barrier, as in the Go client's recipe `Barrier`: Go programs and `etcdctl` can take part.
//! With [`Client::barrier`], it is bound to no lease, so the barrier is held until it is released, also if its process
//! ends. With [`Session::barrier`], it is bound to the lease of the session: the barrier is released at the latest when
//! that lease ends. A session that heals does not hold it again.
//!
//! # Lost responses
//! A request to create the key that gets no response may be applied much later, when the barrier was released long ago.
//! Therefore the key is created with a short lease of its own, and detached from it by a second request that only changes
//! an existing key. The short lease is revoked before [`Barrier::hold`] returns: a late request to create the key fails
//! then. A `hold` that fails, or whose future is dropped, leaves no key behind. If the short lease cannot be revoked,
//! because etcd does not respond or the process ends in the middle of a `hold`, it expires within 30 s, and with it a key
//! that was created late.

mod barrier_hold;
mod wait_barrier;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use tokio::time::Instant;

pub use super::election::Subscription;
pub use barrier_hold::HoldOutcome;
pub use wait_barrier::{BarrierEvent, WaitBarrier};

use super::session::{Session, SessionState};
use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, Outcome, Result},
    kv::{Compare, delete},
    request::IntoBytes,
    retry::availability::{RETRY_DELAY, is_temporary},
};
use barrier_hold::HoldTask;

impl Client {
    /// Returns the barrier with this name. Its key is bound to no lease: it is held until it is released.
    pub fn barrier(&self, name: impl IntoBytes) -> Barrier {
        Barrier {
            client: self.clone(),
            key: name.into_bytes(),
            session: None,
        }
    }
}

impl Session {
    /// Returns the barrier with this name. If it is held through the returned value, it is released at the latest when
    /// the lease of the session ends.
    pub fn barrier(&self, name: impl IntoBytes) -> Barrier {
        Barrier {
            client: self.client().clone(),
            key: name.into_bytes(),
            session: Some(self.state().clone()),
        }
    }
}

/// A barrier in the cluster. Clones are cheap. Dropping a `Barrier` does not release it.
#[derive(Clone)]
pub struct Barrier {
    client: Client,
    key: Bytes,
    /// Whose lease the key is bound to.
    session: Option<Arc<SessionState>>,
}

impl Barrier {
    /// Returns the key in etcd that exists while the barrier is held: its name.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Holds the barrier. Returns [`HoldOutcome::AlreadyHeld`] if it is held already, by anybody.
    ///
    /// Repeats requests without a response for at most the client's `request_timeout`. If it fails, or its future is
    /// dropped, the barrier is not held by this call: what was written is deleted in the background. Fails as any write
    /// does, with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty, and with
    /// [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) if the session is lost.
    pub async fn hold(&self) -> Result<HoldOutcome> {
        self.check_name()?;
        HoldTask::start(&self.client, &self.key, self.session.as_ref()).await
    }

    /// Releases the barrier, whoever holds it. Returns `false` if it was not held.
    ///
    /// Repeats a request without a response for at most the client's `request_timeout`. A request that arrives late never
    /// releases a barrier that was held again. Fails as any write does.
    pub async fn release(&self) -> Result<bool> {
        self.check_name()?;
        let deadline = deadline_in(self.client.request_timeout());
        let (mut held, mut maybe_released) = (None, false);
        loop {
            let error = match self.release_once(&mut held).await {
                Ok(released) => return Ok(released),
                Err(error) => error,
            };
            maybe_released |= held.is_some() && error.outcome() == Outcome::Unknown;
            if !is_temporary(&error) || Instant::now() >= deadline {
                return Err(match held {
                    None => error.with_outcome(Outcome::NotSent),
                    // The last error does not tell about the requests before.
                    Some(_) if maybe_released => error.with_outcome(Outcome::Unknown),
                    Some(_) => error,
                });
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Deletes the key with the create revision `held`, which is read first.
    async fn release_once(&self, held: &mut Option<i64>) -> Result<bool> {
        let found = match *held {
            Some(found) => found,
            None => match self.held_since().await? {
                Some(found) => *held.insert(found),
                None => return Ok(false),
            },
        };
        let is_same = Compare::create_revision(self.key.clone()).eq(found);
        let guarded = self.client.txn().when([is_same]);
        guarded.then([delete(self.key.clone())]).await?;
        // If the key is a different one, this one was deleted before.
        Ok(true)
    }

    /// Returns whether the barrier is held. Fails as any read does.
    pub async fn is_held(&self) -> Result<bool> {
        self.check_name()?;
        Ok(self.held_since().await?.is_some())
    }

    async fn held_since(&self) -> Result<Option<i64>> {
        let found = self.client.get(self.key.clone()).keys_only().await?;
        Ok(found.first().map(|kv| kv.create_revision))
    }

    /// Waits until the barrier is not held. Await the request, or call [`deliver_to`](WaitBarrier::deliver_to) to wait on
    /// behalf of an actor.
    pub fn wait(&self) -> WaitBarrier {
        WaitBarrier::new(&self.client, &self.key)
    }

    fn check_name(&self) -> Result<()> {
        check_name(&self.key)
    }
}

fn check_name(key: &Bytes) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("the name of a barrier is empty"));
    }
    Ok(())
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier")
            .field("key", &self.key)
            .field("bound_to_session", &self.session.is_some())
            .finish_non_exhaustive()
    }
}
