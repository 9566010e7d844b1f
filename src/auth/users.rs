//! Users and the roles they have.
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

use super::administration::rpc;
use super::secret_body;
use crate::{
    client::Client,
    error::{Error, Result},
    proto::{
        self, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
        AuthUserGetRequest, AuthUserGrantRoleRequest, AuthUserListRequest,
        AuthUserRevokeRoleRequest, ResponseHeader, authpb::UserAddOptions,
    },
    request::{HeaderResponse, Request, answers, header, header_responses},
    retry::RpcClass,
};

header_responses!(
    proto::AuthUserAddResponse,
    proto::AuthUserDeleteResponse,
    proto::AuthUserChangePasswordResponse,
    proto::AuthUserGrantRoleResponse,
    proto::AuthUserRevokeRoleResponse,
);
answers!(proto::AuthUserListResponse, proto::AuthUserGetResponse);

/// Users and the roles they have; see [`Client::users`].
#[derive(Debug, Clone)]
pub struct Users<C = Client>(C);

impl Client {
    /// Users and the roles they have.
    pub fn users(&self) -> Users {
        Users(self.clone())
    }
}

/// The same, bound to no client yet: messages to the actor [`Etcd`](crate::Etcd), or to be bound with `.on(&client)`.
pub fn requests() -> Users<()> {
    Users(())
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

    /// Adds a user who logs in by the common name of a client certificate only.
    pub fn add_without_password(&self, name: impl Into<String>) -> Request<HeaderResponse, C> {
        self.add_request(AuthUserAddRequest {
            name: name.into(),
            options: Some(UserAddOptions { no_password: true }),
            ..AuthUserAddRequest::default()
        })
    }

    fn add_request(&self, mut request: AuthUserAddRequest) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/UserAdd", RpcClass::Mutation);
        let body = secret_body(&request);
        request.password.zeroize();
        Request::with_body::<proto::AuthUserAddResponse>(&self.0, rpc, Ok(body))
    }

    /// Removes a user.
    pub fn delete(&self, name: impl Into<String>) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/UserDelete", RpcClass::Mutation);
        let request = AuthUserDeleteRequest { name: name.into() };
        Request::new::<proto::AuthUserDeleteResponse>(&self.0, rpc, &request)
    }

    /// Gives a user another password.
    pub fn change_password(
        &self,
        name: impl Into<String>,
        password: impl Into<String>,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/UserChangePassword", RpcClass::Mutation);
        let mut request = AuthUserChangePasswordRequest {
            name: name.into(),
            password: password.into(),
            ..AuthUserChangePasswordRequest::default()
        };
        let body = secret_body(&request);
        request.password.zeroize();
        Request::with_body::<proto::AuthUserChangePasswordResponse>(&self.0, rpc, Ok(body))
    }

    /// Gives a user a role.
    pub fn grant_role(
        &self,
        name: impl Into<String>,
        role: impl Into<String>,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/UserGrantRole", RpcClass::Mutation);
        let request = AuthUserGrantRoleRequest {
            user: name.into(),
            role: role.into(),
        };
        Request::new::<proto::AuthUserGrantRoleResponse>(&self.0, rpc, &request)
    }

    /// Takes a role from a user.
    pub fn revoke_role(
        &self,
        name: impl Into<String>,
        role: impl Into<String>,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/UserRevokeRole", RpcClass::Mutation);
        let request = AuthUserRevokeRoleRequest {
            name: name.into(),
            role: role.into(),
        };
        Request::new::<proto::AuthUserRevokeRoleResponse>(&self.0, rpc, &request)
    }

    /// The roles of a user.
    pub fn get(&self, name: impl Into<String>) -> Request<UserRoles, C> {
        let rpc = rpc("/etcdserverpb.Auth/UserGet", RpcClass::Read);
        let request = AuthUserGetRequest { name: name.into() };
        Request::new::<proto::AuthUserGetResponse>(&self.0, rpc, &request)
    }

    /// The names of all users.
    pub fn list(&self) -> Request<UserNames, C> {
        let rpc = rpc("/etcdserverpb.Auth/UserList", RpcClass::Read);
        Request::new::<proto::AuthUserListResponse>(&self.0, rpc, &AuthUserListRequest {})
    }
}

/// The roles of a user.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct UserRoles {
    /// Who answered.
    pub header: ResponseHeader,
    /// The names of the roles.
    pub roles: Vec<String>,
}

impl TryFrom<proto::AuthUserGetResponse> for UserRoles {
    type Error = Error;

    fn try_from(answer: proto::AuthUserGetResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            roles: answer.roles,
        })
    }
}

/// All users.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct UserNames {
    /// Who answered.
    pub header: ResponseHeader,
    /// Their names.
    pub users: Vec<String>,
}

impl TryFrom<proto::AuthUserListResponse> for UserNames {
    type Error = Error;

    fn try_from(answer: proto::AuthUserListResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            users: answer.users,
        })
    }
}
