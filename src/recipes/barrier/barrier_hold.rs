//! Creates the key of a barrier so that no request is applied after the barrier was released.

use std::sync::Arc;

use bytes::Bytes;
use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};

use crate::{
    call::deadline_in,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, KeyValue, delete, get, put},
    lease::Lease,
    recipes::{
        session::{SessionLease, SessionState, session_lost_if_no_lease},
        txn_read::first_key,
    },
    retry::availability::{RETRY_DELAY, is_temporary},
    runtime::backoff::Backoff,
};

/// TTL of the lease that the key is created with.
const CREATION_TTL: Duration = Duration::from_secs(30);
/// Delays between attempts to delete the key of a hold that has failed.
const CLEANUP_BACKOFF: Backoff = Backoff::new(RETRY_DELAY, Duration::from_secs(5));

/// Result of [`Barrier::hold`](super::Barrier::hold).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HoldOutcome {
    /// This call holds the barrier.
    #[non_exhaustive]
    Held {
        /// The create revision of the key.
        revision: i64,
    },
    /// The barrier was held already.
    AlreadyHeld(KeyValue),
}

impl HoldOutcome {
    /// Returns whether this call holds the barrier.
    pub fn is_new(&self) -> bool {
        matches!(self, Self::Held { .. })
    }
}

/// Holds a barrier. Runs on the client's thread, so that it is undone if its caller is gone.
#[derive(Clone)]
pub(super) struct HoldTask {
    client: Client,
    key: Bytes,
    session: Option<SessionLease>,
    deadline: Instant,
}

impl HoldTask {
    pub(super) async fn start(
        client: &Client,
        key: &Bytes,
        session: Option<&Arc<SessionState>>,
    ) -> Result<HoldOutcome> {
        let task = Self {
            client: client.for_background(),
            key: key.clone(),
            session: session.map(SessionLease::current).transpose()?,
            deadline: deadline_in(client.request_timeout()),
        };
        let (done, outcome) = oneshot::channel();
        let started = client.run(move || {
            actix_rt::spawn(task.run(done));
        });
        if !started {
            return Err(Error::shut_down());
        }
        outcome.await.map_err(|_| Error::shut_down())?
    }

    async fn run(self, mut done: oneshot::Sender<Result<HoldOutcome>>) {
        let held = match self.create_with_lease(&mut done).await {
            Ok((HoldOutcome::Held { revision }, lease)) => self.keep(revision, lease).await,
            Ok((outcome, lease)) => {
                self.end_lease(lease).await;
                Ok(outcome)
            }
            Err(error) => Err(error),
        };
        if let Err(Ok(HoldOutcome::Held { revision })) = done.send(held) {
            self.remove(revision).await;
        }
    }

    /// Creates the key, bound to a short lease that is revoked when it is dropped. Fails if the caller is gone.
    async fn create_with_lease(
        &self,
        done: &mut oneshot::Sender<Result<HoldOutcome>>,
    ) -> Result<(HoldOutcome, Lease)> {
        // Not cancelled with the caller: the lease of a grant without a response could not be revoked.
        let grant = self.client.lease(CREATION_TTL).keep_alive();
        let lease = grant.revoke_on_drop().await;
        // The outcome of the grant is not that of the hold: the barrier is not held.
        let lease = lease.map_err(|error| error.with_outcome(Outcome::NotSent))?;
        let create = async || self.create(lease.id()).await;
        let outcome = tokio::select! {
            biased;
            // The lease is dropped, and the key with it.
            () = done.closed() => return Err(Error::shut_down()),
            created = self.until_deadline(create) => created?,
        };
        Ok((outcome, lease))
    }

    /// Detaches the key from the short lease, and ends that lease. If that fails, deletes the key in the background.
    async fn keep(&self, revision: i64, lease: Lease) -> Result<HoldOutcome> {
        let bound = self.until_deadline(async || self.rebind(revision).await);
        if let Err(error) = bound.await {
            let task = self.clone();
            actix_rt::spawn(async move { task.remove(revision).await });
            return Err(error);
        }
        self.end_lease(lease).await;
        Ok(HoldOutcome::Held { revision })
    }

    /// Creates the key. It is recognized by its lease after a lost response.
    async fn create(&self, lease: i64) -> Result<HoldOutcome> {
        let key = &self.key;
        let response = self
            .client
            .txn()
            .when([Compare::create_revision(key.clone()).eq(0)])
            .then([put(key.clone(), "").lease(lease)])
            .otherwise([get(key.clone())])
            .await?;
        if response.succeeded {
            let revision = response.header.revision;
            return Ok(HoldOutcome::Held { revision });
        }
        let found = first_key(&response).cloned().unwrap_or_default();
        Ok(if found.lease == lease {
            let revision = found.create_revision;
            HoldOutcome::Held { revision }
        } else {
            HoldOutcome::AlreadyHeld(found)
        })
    }

    /// Detaches the key from the short lease, and binds it to the lease of the session, if there is one. A barrier that
    /// was released meanwhile stays released.
    async fn rebind(&self, revision: i64) -> Result<()> {
        let mut rebound = put(self.key.clone(), "");
        if let Some(session) = &self.session {
            rebound = rebound.lease(session.id());
        }
        let is_same = Compare::create_revision(self.key.clone()).eq(revision);
        let rebind = self.client.txn().when([is_same]).then([rebound]);
        rebind.await.map_err(session_lost_if_no_lease)?;
        Ok(())
    }

    /// Revokes the short lease, so that no late request can create the key. If etcd does not respond in time, the lease
    /// expires.
    async fn end_lease(&self, lease: Lease) {
        if let Err(error) = lease.revoke().await {
            tracing::debug!(%error, key = ?self.key, "lease of a barrier's creation not revoked, it expires");
        }
    }

    /// Repeats a request that may be repeated, until the deadline.
    async fn until_deadline<T>(&self, request: impl AsyncFn() -> Result<T>) -> Result<T> {
        let ended = async {
            match &self.session {
                Some(session) => session.ended_or_client_stops().await,
                None => std::future::pending().await,
            }
        };
        let repeated = async {
            let mut outcome_unknown = false;
            loop {
                let error = match request().await {
                    Ok(done) => return Ok(done),
                    Err(error) => error,
                };
                outcome_unknown |= error.outcome() == Outcome::Unknown;
                if !is_temporary(&error) || Instant::now() >= self.deadline {
                    // The last error does not tell about the requests before.
                    return Err(if outcome_unknown {
                        error.with_outcome(Outcome::Unknown)
                    } else {
                        error
                    });
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        tokio::select! {
            biased;
            loss = ended => Err(loss.into()),
            done = repeated => done,
        }
    }

    /// Deletes the key of a hold that has failed or that nobody waits for, until it is gone or the client is shut down.
    async fn remove(&self, revision: i64) {
        let mut backoff = CLEANUP_BACKOFF.start();
        loop {
            let is_same = Compare::create_revision(self.key.clone()).eq(revision);
            let removed = self.client.txn().when([is_same]);
            match removed.then([delete(self.key.clone())]).await {
                Ok(_) => return,
                Err(error) if error.kind() == ErrorKind::Shutdown => return,
                Err(error) => {
                    tracing::debug!(%error, key = ?self.key, "key of a barrier not deleted yet");
                }
            }
            tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
        }
    }
}
