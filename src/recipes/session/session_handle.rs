//! The public handle of a session.

use std::{fmt, sync::Arc, time::Duration};

use actix::{Addr, Recipient};
use tokio::time::{Instant, timeout_at};
use tokio_stream::{Stream, StreamExt, wrappers::BroadcastStream};

use super::{
    SessionEvent, SessionState, UnrestoredKey, actor::SessionActor, messages::EndSession,
    session_lost_if_no_lease, session_state::BoundKey,
};
use crate::{
    call::deadline_in,
    client::{
        Client,
        subscription::{Subscription, subscribe},
    },
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, PutResponse},
    lease::{Lease, LeaseLost},
    request::IntoBytes,
    retry::availability::RETRY_DELAY,
};

/// A lease that is kept alive, and the keys bound to it. Dropping it revokes the lease in the background.
#[must_use = "dropping the session revokes its lease"]
pub struct Session {
    client: Client,
    state: Arc<SessionState>,
    heals: bool,
    actor: Addr<SessionActor>,
}

impl Session {
    pub(super) fn new(
        client: Client,
        state: Arc<SessionState>,
        actor: Addr<SessionActor>,
        heals: bool,
    ) -> Self {
        Self {
            client,
            state,
            heals,
            actor,
        }
    }

    /// Returns the id of the lease. It changes when the session heals, and is `None` once the session is lost.
    pub fn lease(&self) -> Option<i64> {
        self.state.lock().lease.as_ref().map(Lease::id)
    }

    /// Returns how long the server is certain to have the lease, unless it is revoked.
    pub fn remaining(&self) -> Duration {
        self.state.remaining(None)
    }

    /// Returns the keys that the session could not put again after its lease was lost, each with the reason. The session
    /// retries them.
    pub fn unrestored_keys(&self) -> Vec<UnrestoredKey> {
        self.state.lock().unrestored_keys()
    }

    /// Returns the client that opened the session.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(in crate::recipes) fn heals(&self) -> bool {
        self.heals
    }

    pub(in crate::recipes) fn state(&self) -> &Arc<SessionState> {
        &self.state
    }

    #[cfg(feature = "test-faults")]
    pub(crate) fn actor(&self) -> &Addr<SessionActor> {
        &self.actor
    }

    /// Puts a key that is bound to the session: it is deleted when the session ends and put again when it heals.
    ///
    /// Waits while the session heals, for at most the client's `request_timeout`. Fails with
    /// [`ErrorKind::SessionLost`] once the session is lost, and otherwise as any put does.
    pub async fn put(&self, key: impl IntoBytes, value: impl IntoBytes) -> Result<PutResponse> {
        let (key, value) = (key.into_bytes(), value.into_bytes());
        let deadline = deadline_in(self.client.request_timeout());
        loop {
            let key_writes = self.lock_key_writes(deadline).await?;
            let lease = self.lease().ok_or_else(session_lost)?;
            let write = self.client.put(key.clone(), value.clone()).lease(lease);
            let error = match write.timeout(remaining_until(deadline)).await {
                Ok(response) => {
                    let revision = response.header.revision;
                    let bound = BoundKey { value, revision };
                    self.state.lock().insert_key(key, bound);
                    return Ok(response);
                }
                Err(error) => error,
            };
            if !self.heals {
                return Err(session_lost_if_no_lease(error));
            }
            let lease_gone = error.kind() == ErrorKind::LeaseNotFound;
            if !lease_gone || remaining_until(deadline).is_zero() {
                return Err(error);
            }
            drop(key_writes);
            // The response makes the client report the loss at once instead of at the next keepalive.
            let renewal = self.client.keep_alive_once(lease);
            let _ = renewal.timeout(remaining_until(deadline)).await;
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Deletes a key that this session has put, so that healing does not put it again. A key that another client has
    /// put since is left alone. Returns whether the key was deleted. If the request fails, the key stays bound to the
    /// session.
    pub async fn delete(&self, key: impl IntoBytes) -> Result<bool> {
        let key = key.into_bytes();
        let deadline = deadline_in(self.client.request_timeout());
        let _key_writes = self.lock_key_writes(deadline).await?;
        let bound = self.state.lock().keys.get(&key).cloned();
        let Some(bound) = bound else {
            return Ok(false);
        };
        let response = self
            .client
            .txn()
            .when([Compare::mod_revision(key.clone()).eq(bound.revision)])
            .then([crate::kv::delete(key.clone())])
            .timeout(remaining_until(deadline))
            .await?;
        self.state.lock().remove_key(&key);
        Ok(response.succeeded)
    }

    async fn lock_key_writes(&self, deadline: Instant) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        let locked = timeout_at(deadline, self.state.key_writes.lock()).await;
        locked.map_err(|_| {
            let reason = "the session was still healing or writing another key at the deadline";
            Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, reason)
        })
    }

    /// Returns the events of the session from now on. A reader that is more than 64 events behind misses the oldest.
    pub fn events(&self) -> impl Stream<Item = SessionEvent> + Send + Unpin + use<> {
        BroadcastStream::new(self.state.events.subscribe()).filter_map(std::result::Result::ok)
    }

    /// Sends the events of the session from now on to an actor. The next event is sent when the actor has handled the
    /// last one. The delivery ends when the actor stops, the session ends, or the subscription is dropped.
    pub fn deliver_to(&self, recipient: Recipient<SessionEvent>) -> Subscription {
        let if_shut_down = SessionEvent::Lost(LeaseLost::Shutdown);
        subscribe(&self.client, self.events(), recipient, Some(if_shut_down))
    }

    /// Waits until the session is lost for good and returns the reason. A session that
    /// [heals](super::SessionBuilder::heal) is lost only when the client is shut down or the user may not keep leases.
    pub fn lost(&self) -> impl Future<Output = LeaseLost> + Send + 'static + use<> {
        let mut lost = self.state.lost.subscribe();
        async move {
            let reason = lost.wait_for(Option::is_some).await.map(|reason| *reason);
            match reason {
                Ok(Some(reason)) => reason,
                // The session was dropped, which is not a loss.
                _ => std::future::pending().await,
            }
        }
    }

    /// Ends the session: revokes its lease, so that etcd deletes its keys, and waits for the response. Fails if the
    /// lease could not be revoked; it then expires.
    pub async fn close(self) -> Result<()> {
        match self.state.close() {
            Some(lease) => lease.revoke().await,
            None => Ok(()),
        }
    }

    /// Ends the session without revoking its lease: its keys stay until the lease expires. Another process, or this
    /// one after a restart, can continue with [`from_lease`](super::SessionBuilder::from_lease) and the returned id.
    /// Locks and leaderships held by the session are reported as lost, and dropping their guards does not delete their
    /// keys. Returns `None` if the session has no lease.
    pub fn detach(self) -> Option<i64> {
        let lease = self.state.close()?;
        let is_lost = lease.is_lost();
        let id = lease.detach();
        (!is_lost).then_some(id)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Dropping the lease revokes it.
        drop(self.state.close());
        self.actor.do_send(EndSession);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("lease", &self.lease())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

fn remaining_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn session_lost() -> Error {
    Error::new(ErrorKind::SessionLost, Outcome::NotSent, "")
}
