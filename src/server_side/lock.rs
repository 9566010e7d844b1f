//! Locks run by the server (service `v3lock`).
//!
//! The request stays open while it waits for the lock. If it breaks, the waiter stays in the queue until its lease
//! ends. Prefer [`recipes::mutex`](crate::recipes::mutex), which survives failing members.

use bytes::Bytes;

use crate::{
    proto::{
        ResponseHeader, rpc,
        v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse},
    },
    request::{
        HeaderResponse, IntoBytes, Request,
        key_prefix::{KeyPrefix, KeyedRequest, KeyedResponse},
        macros::{from_response, header_responses, response_headers},
    },
};

response_headers!(LockResponse);
header_responses!(UnlockResponse);

impl KeyedRequest for LockRequest {
    fn add_prefix(&mut self, prefix: &KeyPrefix) {
        prefix.add(&mut self.name);
    }
}

impl KeyedRequest for UnlockRequest {
    fn add_prefix(&mut self, prefix: &KeyPrefix) {
        prefix.add(&mut self.key);
    }
}

impl KeyedResponse for LockResponse {
    fn remove_prefix(&mut self, prefix: &KeyPrefix) {
        prefix.remove(&mut self.key);
    }
}

impl KeyedResponse for UnlockResponse {
    fn remove_prefix(&mut self, _: &KeyPrefix) {}
}

/// Requests of the lock service, made by [`Client::server_locks`](crate::Client::server_locks).
#[derive(Debug, Clone)]
pub struct ServerLocks<C = ()>(C);

/// Creates unbound requests: messages to the actor [`Etcd`](crate::Etcd), or bound later with `.on(&client)`.
pub fn requests() -> ServerLocks {
    ServerLocks(())
}

impl<C> ServerLocks<C> {
    pub(crate) fn new(client: C) -> Self {
        Self(client)
    }
}

impl<C: Clone> ServerLocks<C> {
    /// Waits for the lock and takes it. The lock is held until the lease ends or `unlock`. Set a `.timeout` that covers
    /// the wait.
    pub fn lock(&self, name: impl IntoBytes, lease: impl Into<i64>) -> Request<Locked, C> {
        let rpc = rpc::SERVER_LOCK;
        let request = LockRequest {
            name: name.into_bytes(),
            lease: lease.into(),
        };
        Request::with_keys::<_, LockResponse>(&self.0, rpc, &request)
    }

    /// Releases a lock, by the key that `lock` returned.
    pub fn unlock(&self, key: impl IntoBytes) -> Request<HeaderResponse, C> {
        let rpc = rpc::SERVER_UNLOCK;
        let request = UnlockRequest {
            key: key.into_bytes(),
        };
        Request::with_keys::<_, UnlockResponse>(&self.0, rpc, &request)
    }
}

/// The response to a lock request: the lock is held.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Locked {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// Key that exists while the lock is held. Transactions can check it.
    pub key: Bytes,
}

from_response!(Locked: LockResponse => key);
