//! The requests of a client: one method per request or group of requests.

use std::time::Duration;

use super::Client;
use crate::{
    auth::{Auth, roles::Roles, users::Users},
    cluster::Cluster,
    health::Health,
    kv::{Compact, Delete, Get, Put, Txn, compact, delete, get, put, txn},
    lease::{
        AdoptLease, Grant, KeepAliveOnce, Leases, Revoke, TimeToLive, grant, keep_alive_once,
        lease_from, leases, revoke, time_to_live,
    },
    maintenance::{
        Maintenance,
        versions::{MemberVersion, member_versions},
    },
    request::IntoBytes,
    server_side::{election::ServerElections, lock::ServerLocks},
    watch::{WatchRequest, watch_keys},
};

/// Keys and values.
impl Client {
    /// Reads a key, or with `.prefix()`, `.range(end)` or `.from_key()` several.
    pub fn get(&self, key: impl IntoBytes) -> Get<Self> {
        get(key).on(self)
    }

    /// Writes a key.
    pub fn put(&self, key: impl IntoBytes, value: impl IntoBytes) -> Put<Self> {
        put(key, value).on(self)
    }

    /// Deletes a key, or with `.prefix()`, `.range(end)` or `.from_key()` several.
    pub fn delete(&self, key: impl IntoBytes) -> Delete<Self> {
        delete(key).on(self)
    }

    /// Checks conditions and applies one of two lists of operations, atomically at one revision.
    pub fn txn(&self) -> Txn<Self> {
        txn().on(self)
    }

    /// Discards the history before a revision.
    pub fn compact(&self, revision: i64) -> Compact<Self> {
        compact(revision).on(self)
    }
}

/// Watches.
impl Client {
    /// Watches a key, or with `.prefix()`, `.range(end)` or `.from_key()` several, from now on or from a revision.
    pub fn watch(&self, key: impl IntoBytes) -> WatchRequest<Self> {
        watch_keys(key).on(self)
    }
}

/// Leases.
impl Client {
    /// Grants a lease. etcd deletes the keys attached to it when it ends. It is renewed only with
    /// [`keep_alive`](Grant::keep_alive).
    pub fn lease(&self, ttl: Duration) -> Grant<Self> {
        grant(ttl).on(self)
    }

    /// Takes over a lease by its id and keeps it alive, for example after a restart of the process that granted it.
    /// Fails with [`ErrorKind::LeaseNotFound`](crate::ErrorKind::LeaseNotFound) if the lease does not exist.
    pub fn lease_from(&self, lease: impl Into<i64>) -> AdoptLease<Self> {
        lease_from(lease).on(self)
    }

    /// Renews a lease once, by its id.
    pub fn keep_alive_once(&self, lease: impl Into<i64>) -> KeepAliveOnce<Self> {
        keep_alive_once(lease).on(self)
    }

    /// Returns the remaining time of a lease and, with `.with_keys()`, the keys attached to it.
    pub fn time_to_live(&self, lease: impl Into<i64>) -> TimeToLive<Self> {
        time_to_live(lease).on(self)
    }

    /// Revokes a lease by its id; etcd deletes its keys.
    pub fn revoke(&self, lease: impl Into<i64>) -> Revoke<Self> {
        revoke(lease).on(self)
    }

    /// Lists the leases of the cluster.
    pub fn leases(&self) -> Leases<Self> {
        leases().on(self)
    }
}

/// Administration.
impl Client {
    /// The members of the cluster.
    pub fn cluster(&self) -> Cluster<Self> {
        Cluster::new(self.clone())
    }

    /// Maintenance of the members.
    pub fn maintenance(&self) -> Maintenance<Self> {
        Maintenance::new(self.clone())
    }

    /// Returns the version of every member. A member that does not respond within the request timeout is listed with
    /// its error.
    pub async fn versions(&self) -> Vec<MemberVersion> {
        member_versions(self, self.endpoints(), self.request_timeout()).await
    }

    /// The health services of the members.
    pub fn health(&self) -> Health<Self> {
        Health::new(self.clone())
    }

    /// Enabling and disabling authentication. For the credentials of this client, see
    /// [`ClientBuilder::credentials`](super::ClientBuilder::credentials).
    pub fn auth(&self) -> Auth<Self> {
        Auth::new(self.clone())
    }

    /// Users and their roles.
    pub fn users(&self) -> Users<Self> {
        Users::new(self.clone())
    }

    /// Roles and their permissions.
    pub fn roles(&self) -> Roles<Self> {
        Roles::new(self.clone())
    }

    /// Locks run by the server.
    pub fn server_locks(&self) -> ServerLocks<Self> {
        ServerLocks::new(self.clone())
    }

    /// Elections run by the server.
    pub fn server_elections(&self) -> ServerElections<Self> {
        ServerElections::new(self.clone())
    }
}
