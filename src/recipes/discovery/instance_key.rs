//! Reads and writes the key of a registered instance.
//!
//! The key belongs to the registration while it is bound to one of its leases. After the first put, every write is
//! conditional on that, or on the absence of the key, so that a newer instance is never overwritten.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    client::Client,
    error::{ErrorKind, Result},
    kv::{Compare, KeyValue, get, put},
    recipes::{
        temporary_errors::{RETRY_DELAY, is_temporary},
        txn_read::first_key,
    },
    runtime::backoff::Backoff,
};

/// Delays between attempts to read or write the key.
const KEY_BACKOFF: Backoff = Backoff::new(RETRY_DELAY, Duration::from_secs(2));
/// More leases than can exist at once: a new one is granted only after the loss of the last.
const MAX_LEASES: usize = 8;

/// Result of a read or a write of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyStatus {
    /// The key exists and belongs to this registration.
    Listed,
    /// Another process has put the key, or the key was deleted.
    Taken,
    /// The lease does not exist any more, and etcd has deleted the key with it.
    LeaseLost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyOwner {
    /// The key does not exist.
    Absent,
    /// This registration put the key at this revision.
    ThisRegistration(i64),
    /// Another process put the key.
    Other,
}

#[derive(Clone)]
pub(super) struct InstanceKey {
    client: Client,
    key: Bytes,
    /// The latest leases of this registration. The last one is the current lease.
    leases: Vec<i64>,
}

impl InstanceKey {
    pub(super) fn new(client: Client, key: Bytes, lease: i64) -> Self {
        Self {
            client,
            key,
            leases: vec![lease],
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn key(&self) -> &Bytes {
        &self.key
    }

    pub(super) fn lease(&self) -> i64 {
        self.leases.last().copied().unwrap_or_default()
    }

    /// Sets the lease for later writes.
    pub(super) fn set_lease(&mut self, lease: i64) {
        if self.leases.len() == MAX_LEASES {
            self.leases.remove(0);
        }
        self.leases.push(lease);
    }

    pub(super) fn owner(&self, found: Option<&KeyValue>) -> KeyOwner {
        owner(found, &self.leases)
    }

    /// Puts the key if it belongs to this registration. With `create_if_absent`, also if it does not exist.
    pub(super) async fn write(&self, value: &Bytes, create_if_absent: bool) -> Result<KeyStatus> {
        match self.try_write(value, create_if_absent).await {
            Err(error) if error.kind() == ErrorKind::LeaseNotFound => {
                let _ = self.why_absent().await;
                Ok(KeyStatus::LeaseLost)
            }
            written => written,
        }
    }

    async fn try_write(&self, value: &Bytes, create_if_absent: bool) -> Result<KeyStatus> {
        let key = || self.key.clone();
        let write = || put(key(), value.clone()).lease(self.lease());
        loop {
            let response = self
                .client
                .txn()
                .when([Compare::lease(key()).eq(self.lease())])
                .then([write()])
                .otherwise([get(key())])
                .await?;
            if response.succeeded {
                return Ok(KeyStatus::Listed);
            }
            let unchanged = match self.owner(first_key(&response)) {
                KeyOwner::Other => return Ok(KeyStatus::Taken),
                KeyOwner::Absent if !create_if_absent => return self.why_absent().await,
                KeyOwner::Absent => Compare::version(key()).eq(0),
                // Bound to an earlier lease that has not ended yet.
                KeyOwner::ThisRegistration(revision) => Compare::mod_revision(key()).eq(revision),
            };
            let response = self.client.txn().when([unchanged]).then([write()]).await?;
            if response.succeeded {
                return Ok(KeyStatus::Listed);
            }
        }
    }

    /// Reads the key.
    async fn check(&self) -> Result<KeyStatus> {
        let found = self.client.get(self.key.clone()).await?;
        match self.owner(found.first()) {
            KeyOwner::ThisRegistration(_) => Ok(KeyStatus::Listed),
            KeyOwner::Other => Ok(KeyStatus::Taken),
            KeyOwner::Absent => self.why_absent().await,
        }
    }

    /// Writes `value`, or only reads the key if `value` is `None`. Retries until that succeeds. Fails when the client
    /// is shut down.
    pub(super) async fn write_or_check(self, value: Option<Bytes>) -> Result<KeyStatus> {
        let mut backoff = KEY_BACKOFF.start();
        loop {
            let attempt = match &value {
                Some(value) => self.write(value, true).await,
                None => self.check().await,
            };
            let error = match attempt {
                Err(error) if error.kind() != ErrorKind::Shutdown => error,
                done => return done,
            };
            if !is_temporary(&error) {
                tracing::warn!(%error, key = ?self.key, "instance not listed again yet");
            }
            tokio::time::sleep(backoff.next_delay(fastrand::f64())).await;
        }
    }

    /// Returns why the key does not exist: it was deleted if the lease still exists. The keepalive also makes the
    /// client report a lost lease at once.
    async fn why_absent(&self) -> Result<KeyStatus> {
        match self.client.keep_alive_once(self.lease()).await {
            Ok(_) => Ok(KeyStatus::Taken),
            Err(error) if error.kind() == ErrorKind::LeaseNotFound => Ok(KeyStatus::LeaseLost),
            Err(error) => Err(error),
        }
    }
}

fn owner(found: Option<&KeyValue>, leases: &[i64]) -> KeyOwner {
    match found {
        None => KeyOwner::Absent,
        Some(found) if leases.contains(&found.lease) => {
            KeyOwner::ThisRegistration(found.mod_revision)
        }
        Some(_) => KeyOwner::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_with_any_own_lease_belongs_to_registration() {
        let bound_to = |lease| KeyValue {
            lease,
            mod_revision: 9,
            ..KeyValue::default()
        };
        assert_eq!(owner(None, &[1, 2]), KeyOwner::Absent);
        assert_eq!(
            owner(Some(&bound_to(1)), &[1, 2]),
            KeyOwner::ThisRegistration(9)
        );
        assert_eq!(
            owner(Some(&bound_to(2)), &[1, 2]),
            KeyOwner::ThisRegistration(9)
        );
        assert_eq!(owner(Some(&bound_to(3)), &[1, 2]), KeyOwner::Other);
        assert_eq!(owner(Some(&bound_to(0)), &[1, 2]), KeyOwner::Other);
    }
}
