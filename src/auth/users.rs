//! Users and their roles.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::auth::roles::Permission;
//!
//! etcd.roles().add("reader").await?;
//! etcd.roles().grant("reader", Permission::read("config/").prefix()).await?;
//! etcd.users().add("app", "a password").await?;
//! etcd.users().grant_role("app", "reader").await?;
//! # Ok(())
//! # }
//! ```

use zeroize::Zeroize;

use super::secret_body;
use crate::{
    proto::{
        self, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
        AuthUserGetRequest, AuthUserGrantRoleRequest, AuthUserListRequest,
        AuthUserRevokeRoleRequest, ResponseHeader, authpb::UserAddOptions, rpc,
    },
    request::{
        HeaderResponse, Request,
        macros::{from_response, header_responses, response_headers},
    },
};

header_responses!(
    proto::AuthUserAddResponse,
    proto::AuthUserDeleteResponse,
    proto::AuthUserChangePasswordResponse,
    proto::AuthUserGrantRoleResponse,
    proto::AuthUserRevokeRoleResponse,
);
response_headers!(proto::AuthUserListResponse, proto::AuthUserGetResponse);

/// Requests about users, made by [`Client::users`](crate::Client::users).
#[derive(Debug, Clone)]
pub struct Users<C = ()>(C);

/// Creates unbound requests: messages to the actor [`Etcd`](crate::Etcd), or bound later with `.on(&client)`.
pub fn requests() -> Users {
    Users(())
}

impl<C> Users<C> {
    pub(crate) fn new(client: C) -> Self {
        Self(client)
    }
}

impl<C: Clone> Users<C> {
    /// Adds a user with a password.
    pub fn add(
        &self,
        name: impl Into<String>,
        password: impl Into<String>,
    ) -> Request<HeaderResponse, C> {
        self.add_request(AuthUserAddRequest {
            name: name.into(),
            password: password.into(),
            ..AuthUserAddRequest::default()
        })
    }

    /// Adds a user that can log in only with the common name of a client certificate.
    pub fn add_without_password(&self, name: impl Into<String>) -> Request<HeaderResponse, C> {
        self.add_request(AuthUserAddRequest {
            name: name.into(),
            options: Some(UserAddOptions { no_password: true }),
            ..AuthUserAddRequest::default()
        })
    }

    fn add_request(&self, mut request: AuthUserAddRequest) -> Request<HeaderResponse, C> {
        let rpc = rpc::USER_ADD;
        let body = secret_body(&request);
        request.password.zeroize();
        Request::with_body::<proto::AuthUserAddResponse>(&self.0, rpc, Ok(body))
    }

    /// Deletes a user.
    pub fn delete(&self, name: impl Into<String>) -> Request<HeaderResponse, C> {
        let rpc = rpc::USER_DELETE;
        let request = AuthUserDeleteRequest { name: name.into() };
        Request::new::<proto::AuthUserDeleteResponse>(&self.0, rpc, &request)
    }

    /// Changes a user's password.
    pub fn change_password(
        &self,
        name: impl Into<String>,
        password: impl Into<String>,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc::USER_CHANGE_PASSWORD;
        let mut request = AuthUserChangePasswordRequest {
            name: name.into(),
            password: password.into(),
            ..AuthUserChangePasswordRequest::default()
        };
        let body = secret_body(&request);
        request.password.zeroize();
        Request::with_body::<proto::AuthUserChangePasswordResponse>(&self.0, rpc, Ok(body))
    }

    /// Grants a role to a user.
    pub fn grant_role(
        &self,
        name: impl Into<String>,
        role: impl Into<String>,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc::USER_GRANT_ROLE;
        let request = AuthUserGrantRoleRequest {
            user: name.into(),
            role: role.into(),
        };
        Request::new::<proto::AuthUserGrantRoleResponse>(&self.0, rpc, &request)
    }

    /// Revokes a role from a user.
    pub fn revoke_role(
        &self,
        name: impl Into<String>,
        role: impl Into<String>,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc::USER_REVOKE_ROLE;
        let request = AuthUserRevokeRoleRequest {
            name: name.into(),
            role: role.into(),
        };
        Request::new::<proto::AuthUserRevokeRoleResponse>(&self.0, rpc, &request)
    }

    /// Returns the roles of a user.
    pub fn get(&self, name: impl Into<String>) -> Request<UserRoles, C> {
        let rpc = rpc::USER_GET;
        let request = AuthUserGetRequest { name: name.into() };
        Request::new::<proto::AuthUserGetResponse>(&self.0, rpc, &request)
    }

    /// Lists the names of all users.
    pub fn list(&self) -> Request<UserNames, C> {
        let rpc = rpc::USER_LIST;
        Request::new::<proto::AuthUserListResponse>(&self.0, rpc, &AuthUserListRequest {})
    }
}

/// The roles of a user.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct UserRoles {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// Names of the roles.
    pub roles: Vec<String>,
}

from_response!(UserRoles: proto::AuthUserGetResponse => roles);

/// The names of all users.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct UserNames {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// Names of the users.
    pub users: Vec<String>,
}

from_response!(UserNames: proto::AuthUserListResponse => users);
