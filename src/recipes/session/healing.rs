//! Follows the lease of a session and replaces it when it is lost.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;
use tokio_stream::StreamExt;

use super::{SessionBuilder, SessionEvent, SessionState, session_state::BoundKey};
use crate::{
    call::deadline_in,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, get, put},
    lease::{Lease, LeaseEvent, LeaseEvents, LeaseLost},
    recipes::txn_read::first_key,
    runtime::backoff::Backoff,
};

/// Delays between attempts to heal: from 50–100 ms up to 1–2 s.
const HEAL_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(75), Duration::from_millis(1500)).jitter(1.0 / 3.0);

pub(super) struct Healer {
    pub(super) builder: SessionBuilder,
    pub(super) state: Arc<SessionState>,
}

impl Healer {
    /// Follows the lease and its replacements. Returns when the session is lost for good or its lease was released.
    pub(super) async fn follow_lease(&self) {
        // A lost lease reports its loss to every new reader, so a restarted actor does not miss it.
        let events = self.state.lock().lease.as_ref().map(Lease::events);
        let Some(mut events) = events else { return };
        loop {
            let Some(reason) = self.wait_for_loss(&mut events).await else {
                return;
            };
            self.state.lease_status.set_lost(reason);
            let is_final = matches!(reason, LeaseLost::Shutdown | LeaseLost::PermissionDenied);
            if is_final || !self.builder.heal {
                return self.state.end(reason);
            }
            self.state.publish(SessionEvent::Healing(reason));
            match self.heal().await {
                Ok(Some(new_events)) => events = new_events,
                Ok(None) => return,
                Err(_) => return self.state.end(LeaseLost::Shutdown),
            }
        }
    }

    /// Waits until the lease is lost. Returns `None` if it was released instead.
    async fn wait_for_loss(&self, events: &mut LeaseEvents) -> Option<LeaseLost> {
        loop {
            match events.next().await? {
                LeaseEvent::Lost(reason) => return Some(reason),
                LeaseEvent::AtRisk { deadline } => {
                    self.state.lease_status.set_at_risk();
                    self.state.publish(SessionEvent::AtRisk { deadline });
                }
                LeaseEvent::Recovered { deadline } => {
                    self.state.lease_status.set_certain();
                    self.state.publish(SessionEvent::Recovered { deadline });
                }
                LeaseEvent::Renewed { .. } => self.state.lease_status.set_certain(),
            }
        }
    }

    /// Retries until there is a new lease and each key is put again or was put by another client. Returns the events of
    /// the new lease, or `None` if the handle was dropped. Fails when the client is shut down.
    async fn heal(&self) -> Result<Option<LeaseEvents>> {
        let _key_writes = self.state.key_writes.lock().await;
        let mut backoff = HEAL_BACKOFF.start();
        loop {
            match self.heal_once().await {
                Err(error) if error.kind() != ErrorKind::Shutdown => {
                    tracing::warn!(%error, "session not healed yet");
                    tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
                }
                healed => return healed,
            }
        }
    }

    async fn heal_once(&self) -> Result<Option<LeaseEvents>> {
        let lease = self.grant().await?;
        let events = lease.events();
        let id = lease.id();
        let keys: Vec<(Bytes, BoundKey)> = {
            let mut state = self.state.lock();
            state.all_leases.push(id);
            let keys = state.keys.iter();
            keys.map(|(key, bound)| (key.clone(), bound.clone()))
                .collect()
        };
        for (key, bound) in keys {
            let revision = self.put_again(&key, &bound, id).await?;
            let mut state = self.state.lock();
            if let Some(revision) = revision {
                state.keys.insert(key, BoundKey { revision, ..bound });
            } else {
                state.keys.remove(&key);
                state.taken.push(key);
            }
        }
        if !self.state.replace_lease(lease) {
            return Ok(None);
        }
        let taken = std::mem::take(&mut self.state.lock().taken);
        self.state
            .publish(SessionEvent::Healed { lease: id, taken });
        Ok(Some(events))
    }

    /// Grants a new lease in a separate task. If this future is dropped, because the session was dropped or the actor
    /// panicked, the task still gets the lease, and dropping it revokes it.
    async fn grant(&self) -> Result<Lease> {
        let grant = actix_rt::spawn(self.builder.grant().into_future());
        grant.await.unwrap_or_else(|panicked| {
            let reason = "the task that grants a new lease was interrupted";
            Err(Error::new(ErrorKind::Other, Outcome::Unknown, reason).with_source(panicked))
        })
    }

    /// Puts a key, unless another client has put it. Returns the revision of the put, or `None` if it was skipped.
    async fn put_again(&self, key: &Bytes, bound: &BoundKey, lease: i64) -> Result<Option<i64>> {
        let client = &self.builder.client;
        let deadline = deadline_in(client.request_timeout());
        let write = || put(key.clone(), bound.value.clone()).lease(lease);
        loop {
            let if_absent = client
                .txn()
                .when([Compare::version(key.clone()).eq(0)])
                .then([write()])
                .otherwise([get(key.clone())])
                .await?;
            if if_absent.succeeded {
                return Ok(Some(if_absent.header.revision));
            }
            let found = first_key(&if_absent).ok_or_else(|| {
                let reason = "the response lacks the key that the transaction found";
                Error::new(ErrorKind::Protocol, Outcome::Rejected, reason)
            })?;
            // Also keys of this session: a put whose response was lost, and a key of a lease whose end was never
            // confirmed.
            let is_own = found.mod_revision == bound.revision
                || self.state.lock().all_leases.contains(&found.lease);
            if !is_own {
                return Ok(None);
            }
            let if_unchanged = client
                .txn()
                .when([Compare::mod_revision(key.clone()).eq(found.mod_revision)])
                .then([write()])
                .await?;
            if if_unchanged.succeeded {
                return Ok(Some(if_unchanged.header.revision));
            }
            // The key may have been deleted with its lease between the two transactions, so it is read again.
            if Instant::now() >= deadline {
                let reason = "the key changes each time the session puts it again";
                return Err(Error::new(ErrorKind::Other, Outcome::Rejected, reason));
            }
        }
    }
}
