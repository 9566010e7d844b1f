//! Reads and writes the key of a registered instance.
//!
//! The key belongs to the registration while it is bound to one of its leases. Every write is conditional on the
//! revision of the key that was read or written last, or on the absence of the key: a newer instance is never
//! overwritten, and neither is a newer value of the same instance by an earlier write whose response was lost and that
//! arrives late.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    client::Client,
    error::{ErrorKind, Result},
    kv::{Compare, KeyValue, TxnResponse, get, put},
    recipes::{session::OwnLeases, txn_read::first_key},
    retry::availability::{RETRY_DELAY, is_temporary},
    runtime::backoff::Backoff,
};

/// Delays between attempts to read or write the key.
const KEY_BACKOFF: Backoff = Backoff::new(RETRY_DELAY, Duration::from_secs(2));

/// Result of a read or a write of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyStatus {
    /// The key exists at this revision and belongs to this registration.
    Listed { revision: i64 },
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
    leases: OwnLeases,
    /// Last known revision of the key.
    revision: i64,
}

impl InstanceKey {
    pub(super) fn new(client: Client, key: Bytes, lease: i64) -> Self {
        Self {
            client,
            key,
            leases: OwnLeases::new(lease),
            revision: 0,
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn key(&self) -> &Bytes {
        &self.key
    }

    pub(super) fn lease(&self) -> i64 {
        self.leases.current()
    }

    /// Sets the lease for later writes.
    pub(super) fn set_lease(&mut self, lease: i64) {
        self.leases.push(lease);
    }

    /// Sets the revision of the key, as returned by the last read or write.
    pub(super) fn set_revision(&mut self, revision: i64) {
        self.revision = revision;
    }

    /// Puts the key, also if it belongs to another instance: a later registration under the same key replaces an earlier
    /// one.
    pub(super) async fn create(&mut self, value: &Bytes) -> Result<()> {
        let mut revision = match self.client.get(self.key.clone()).await {
            Ok(found) => found.first().map_or(0, |found| found.mod_revision),
            // Without permission to read the key, the put cannot be conditional.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let put = self.client.put(self.key.clone(), value.clone());
                self.revision = put.lease(self.lease()).await?.header.revision;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        loop {
            let response = self.put_at(value, revision).await?;
            if response.succeeded {
                self.revision = response.header.revision;
                return Ok(());
            }
            revision = first_key(&response).map_or(0, |found| found.mod_revision);
        }
    }

    /// Puts the key if it still has this revision; zero if it is absent. Otherwise reads it.
    async fn put_at(&self, value: &Bytes, revision: i64) -> Result<TxnResponse> {
        let key = || self.key.clone();
        self.client
            .txn()
            .when([Compare::mod_revision(key()).eq(revision)])
            .then([put(key(), value.clone()).lease(self.lease())])
            .otherwise([get(key())])
            .await
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
        let mut revision = self.revision;
        loop {
            let response = self.put_at(value, revision).await?;
            if response.succeeded {
                let revision = response.header.revision;
                return Ok(KeyStatus::Listed { revision });
            }
            revision = match self.owner(first_key(&response)) {
                KeyOwner::Other => return Ok(KeyStatus::Taken),
                KeyOwner::Absent if !create_if_absent => return self.why_absent().await,
                KeyOwner::Absent => 0,
                // Written by an earlier request of this registration.
                KeyOwner::ThisRegistration(revision) => revision,
            };
        }
    }

    /// Reads the key.
    async fn check(&self) -> Result<KeyStatus> {
        let found = self.client.get(self.key.clone()).await?;
        match self.owner(found.first()) {
            KeyOwner::ThisRegistration(revision) => Ok(KeyStatus::Listed { revision }),
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

fn owner(found: Option<&KeyValue>, leases: &OwnLeases) -> KeyOwner {
    match found {
        None => KeyOwner::Absent,
        Some(found) if leases.contains(found.lease) => {
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
        let mut leases = OwnLeases::new(1);
        leases.push(2);
        assert_eq!(owner(None, &leases), KeyOwner::Absent);
        assert_eq!(
            owner(Some(&bound_to(1)), &leases),
            KeyOwner::ThisRegistration(9)
        );
        assert_eq!(
            owner(Some(&bound_to(2)), &leases),
            KeyOwner::ThisRegistration(9)
        );
        assert_eq!(owner(Some(&bound_to(3)), &leases), KeyOwner::Other);
        assert_eq!(owner(Some(&bound_to(0)), &leases), KeyOwner::Other);
    }
}
