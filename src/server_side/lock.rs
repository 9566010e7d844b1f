//! Locks that the server keeps (service `v3lock`).
//!
//! The server waits for the lock, so the request is open for as long, and one that breaks leaves a waiter behind until
//! its lease ends. Prefer the recipes of this crate, which survive a failing member.

use bytes::Bytes;

use crate::{
    call::Rpc,
    client::Client,
    error::{Error, Result},
    proto::{
        ResponseHeader,
        v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse},
    },
    request::{HeaderResponse, IntoBytes, Request, answers, header, header_responses},
    retry::RpcClass,
};

answers!(LockResponse);
header_responses!(UnlockResponse);

/// Locks that the server keeps; see [`Client::server_locks`].
#[derive(Debug, Clone)]
pub struct ServerLocks<C = Client>(C);

impl Client {
    /// Locks that the server keeps.
    pub fn server_locks(&self) -> ServerLocks {
        ServerLocks(self.clone())
    }
}

/// The same, bound to no client yet: messages to the actor [`Etcd`](crate::Etcd), or to be bound with `.on(&client)`.
pub fn requests() -> ServerLocks<()> {
    ServerLocks(())
}

impl<C: Clone> ServerLocks<C> {
    /// Waits for the lock and takes it; it is held for as long as the lease lives, or until `unlock`. Allow as long as
    /// it may take (`.timeout`).
    pub fn lock(&self, name: impl IntoBytes, lease: impl Into<i64>) -> Request<Locked, C> {
        let rpc = Rpc {
            path: "/v3lockpb.Lock/Lock",
            class: RpcClass::Mutation,
            leaderless: false,
            waits: true,
        };
        let request = LockRequest {
            name: name.into_bytes(),
            lease: lease.into(),
        };
        Request::new::<LockResponse>(&self.0, rpc, &request)
    }

    /// Gives a lock back, by the key that `lock` gave.
    pub fn unlock(&self, key: impl IntoBytes) -> Request<HeaderResponse, C> {
        let rpc = Rpc {
            path: "/v3lockpb.Lock/Unlock",
            // A late one would take the key of the next holder, which has the same name.
            class: RpcClass::Mutation,
            leaderless: false,
            waits: false,
        };
        let request = UnlockRequest {
            key: key.into_bytes(),
        };
        Request::new::<UnlockResponse>(&self.0, rpc, &request)
    }
}

/// A lock that was taken.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Locked {
    /// Who answered.
    pub header: ResponseHeader,
    /// Exists for as long as the lock is held: a transaction can make sure of it.
    pub key: Bytes,
}

impl TryFrom<LockResponse> for Locked {
    type Error = Error;

    fn try_from(answer: LockResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            key: answer.key,
        })
    }
}
