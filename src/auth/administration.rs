//! Enabling and disabling authentication.

use crate::{
    error::{Error, Result},
    proto::{self, AuthDisableRequest, AuthEnableRequest, AuthStatusRequest, ResponseHeader, rpc},
    request::{
        HeaderResponse, Request, header,
        macros::{header_responses, response_headers},
    },
};

header_responses!(proto::AuthEnableResponse, proto::AuthDisableResponse);
response_headers!(proto::AuthStatusResponse);

/// Requests that enable or disable authentication, made by [`Client::auth`](crate::Client::auth).
#[derive(Debug, Clone)]
pub struct Auth<C = ()>(C);

/// Creates unbound requests: messages to the actor [`Etcd`](crate::Etcd), or bound later with `.on(&client)`.
pub fn requests() -> Auth {
    Auth(())
}

impl<C> Auth<C> {
    pub(crate) fn new(client: C) -> Self {
        Self(client)
    }
}

impl<C: Clone> Auth<C> {
    /// Enables authentication. Requires a user `root` with the role `root`.
    pub fn enable(&self) -> Request<HeaderResponse, C> {
        let rpc = rpc::AUTH_ENABLE;
        Request::new::<proto::AuthEnableResponse>(&self.0, rpc, &AuthEnableRequest {})
    }

    /// Disables authentication.
    pub fn disable(&self) -> Request<HeaderResponse, C> {
        let rpc = rpc::AUTH_DISABLE;
        Request::new::<proto::AuthDisableResponse>(&self.0, rpc, &AuthDisableRequest {})
    }

    /// Returns whether authentication is enabled. Since etcd 3.5.
    pub fn status(&self) -> Request<AuthStatus, C> {
        let rpc = rpc::AUTH_STATUS;
        Request::new::<proto::AuthStatusResponse>(&self.0, rpc, &AuthStatusRequest {})
    }
}

/// The response to [`Auth::status`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AuthStatus {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// Whether authentication is enabled.
    pub enabled: bool,
    /// Revision of the auth store: incremented by every change of users and roles.
    pub revision: u64,
}

impl TryFrom<proto::AuthStatusResponse> for AuthStatus {
    type Error = Error;

    fn try_from(response: proto::AuthStatusResponse) -> Result<Self> {
        Ok(Self {
            header: header(response.header),
            enabled: response.enabled,
            revision: response.auth_revision,
        })
    }
}
