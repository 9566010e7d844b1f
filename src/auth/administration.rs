//! Switching authentication on and off.
//!
//! Users and their roles are in [`users`](super::users) and [`roles`](super::roles).

use crate::{
    call::Rpc,
    client::Client,
    error::{Error, Result},
    proto::{self, AuthDisableRequest, AuthEnableRequest, AuthStatusRequest, ResponseHeader},
    request::{HeaderResponse, Request, answers, header, header_responses},
    retry::RpcClass,
};

header_responses!(proto::AuthEnableResponse, proto::AuthDisableResponse);
answers!(proto::AuthStatusResponse);

/// A request of the Auth service.
pub(super) const fn rpc(path: &'static str, class: RpcClass) -> Rpc {
    Rpc {
        path,
        class,
        leaderless: false,
        waits: false,
    }
}

/// Authentication as a whole; see [`Client::auth`].
#[derive(Debug, Clone)]
pub struct Auth<C = Client>(C);

impl Client {
    /// Authentication as a whole: on, off, status.
    pub fn auth(&self) -> Auth {
        Auth(self.clone())
    }
}

/// The same, bound to no client yet: messages to the actor [`Etcd`](crate::Etcd), or to be bound with `.on(&client)`.
pub fn requests() -> Auth<()> {
    Auth(())
}

impl<C: Clone> Auth<C> {
    /// Switches authentication on. Needs a user `root` with the role `root`.
    pub fn enable(&self) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/AuthEnable", RpcClass::Mutation);
        Request::new::<proto::AuthEnableResponse>(&self.0, rpc, &AuthEnableRequest {})
    }

    /// Switches authentication off.
    pub fn disable(&self) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/AuthDisable", RpcClass::Mutation);
        Request::new::<proto::AuthDisableResponse>(&self.0, rpc, &AuthDisableRequest {})
    }

    /// Whether it is on (since etcd 3.5).
    pub fn status(&self) -> Request<AuthStatus, C> {
        let rpc = rpc("/etcdserverpb.Auth/AuthStatus", RpcClass::Read);
        Request::new::<proto::AuthStatusResponse>(&self.0, rpc, &AuthStatusRequest {})
    }
}

/// Whether authentication is on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AuthStatus {
    /// Who answered.
    pub header: ResponseHeader,
    /// Whether it is on.
    pub enabled: bool,
    /// Counts the changes of users and roles.
    pub revision: u64,
}

impl TryFrom<proto::AuthStatusResponse> for AuthStatus {
    type Error = Error;

    fn try_from(answer: proto::AuthStatusResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            enabled: answer.enabled,
            revision: answer.auth_revision,
        })
    }
}
