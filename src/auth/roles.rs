//! Roles and their permissions.

use crate::{
    error::{Error, Result},
    proto::{
        self, AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGetRequest,
        AuthRoleGrantPermissionRequest, AuthRoleListRequest, AuthRoleRevokePermissionRequest,
        ResponseHeader, authpb, rpc,
    },
    request::{
        HeaderResponse, IntoBytes, Request, header,
        key_range::{KeyRange, key_range_methods},
        macros::{from_response, header_responses, response_headers},
    },
    transport::grpc,
};

pub use crate::proto::authpb::permission::Type as Access;

header_responses!(
    proto::AuthRoleAddResponse,
    proto::AuthRoleDeleteResponse,
    proto::AuthRoleGrantPermissionResponse,
    proto::AuthRoleRevokePermissionResponse,
);
response_headers!(proto::AuthRoleListResponse, proto::AuthRoleGetResponse);

/// Access to a key, or with `.prefix()`, `.range(end)` or `.from_key()` to several.
#[derive(Debug, Clone)]
#[must_use = "a permission has no effect until it is granted or revoked"]
pub struct Permission {
    access: Access,
    range: KeyRange,
}

impl Permission {
    fn new(access: Access, key: impl IntoBytes) -> Self {
        Self {
            access,
            range: KeyRange::key(key.into_bytes()),
        }
    }

    /// Permission to read.
    pub fn read(key: impl IntoBytes) -> Self {
        Self::new(Access::Read, key)
    }

    /// Permission to write.
    pub fn write(key: impl IntoBytes) -> Self {
        Self::new(Access::Write, key)
    }

    /// Permission to read and write.
    pub fn read_write(key: impl IntoBytes) -> Self {
        Self::new(Access::Readwrite, key)
    }
}

key_range_methods!(Permission);

/// Requests about roles, made by [`Client::roles`](crate::Client::roles).
#[derive(Debug, Clone)]
pub struct Roles<C = ()>(C);

/// Creates unbound requests: messages to the actor [`Etcd`](crate::Etcd), or bound later with `.on(&client)`.
pub fn requests() -> Roles {
    Roles(())
}

impl<C> Roles<C> {
    pub(crate) fn new(client: C) -> Self {
        Self(client)
    }
}

impl<C: Clone> Roles<C> {
    /// Adds a role without permissions.
    pub fn add(&self, name: impl Into<String>) -> Request<HeaderResponse, C> {
        let rpc = rpc::ROLE_ADD;
        let request = AuthRoleAddRequest { name: name.into() };
        Request::new::<proto::AuthRoleAddResponse>(&self.0, rpc, &request)
    }

    /// Deletes a role and revokes it from all users.
    pub fn delete(&self, name: impl Into<String>) -> Request<HeaderResponse, C> {
        let rpc = rpc::ROLE_DELETE;
        let request = AuthRoleDeleteRequest { role: name.into() };
        Request::new::<proto::AuthRoleDeleteResponse>(&self.0, rpc, &request)
    }

    /// Grants a permission to a role.
    pub fn grant(
        &self,
        name: impl Into<String>,
        permission: Permission,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc::ROLE_GRANT_PERMISSION;
        let Permission { access, range } = permission;
        let name = name.into();
        let body = range.resolve().and_then(|(key, range_end)| {
            grpc::encode(&AuthRoleGrantPermissionRequest {
                name,
                perm: Some(authpb::Permission {
                    perm_type: access.into(),
                    key,
                    range_end,
                }),
            })
        });
        Request::with_body::<proto::AuthRoleGrantPermissionResponse>(&self.0, rpc, body)
    }

    /// Revokes a permission from a role. The keys must be exactly those of one grant; the kind of access is ignored.
    pub fn revoke(
        &self,
        name: impl Into<String>,
        permission: Permission,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc::ROLE_REVOKE_PERMISSION;
        let Permission { range, .. } = permission;
        let role = name.into();
        let body = range.resolve().and_then(|(key, range_end)| {
            grpc::encode(&AuthRoleRevokePermissionRequest {
                role,
                key,
                range_end,
            })
        });
        Request::with_body::<proto::AuthRoleRevokePermissionResponse>(&self.0, rpc, body)
    }

    /// Returns the permissions of a role.
    pub fn get(&self, name: impl Into<String>) -> Request<RolePermissions, C> {
        let rpc = rpc::ROLE_GET;
        let request = AuthRoleGetRequest { role: name.into() };
        Request::new::<proto::AuthRoleGetResponse>(&self.0, rpc, &request)
    }

    /// Lists the names of all roles.
    pub fn list(&self) -> Request<RoleNames, C> {
        let rpc = rpc::ROLE_LIST;
        Request::new::<proto::AuthRoleListResponse>(&self.0, rpc, &AuthRoleListRequest {})
    }
}

/// The permissions of a role.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RolePermissions {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// Permissions as etcd stores them.
    pub permissions: Vec<authpb::Permission>,
}

impl TryFrom<proto::AuthRoleGetResponse> for RolePermissions {
    type Error = Error;

    fn try_from(response: proto::AuthRoleGetResponse) -> Result<Self> {
        Ok(Self {
            header: header(response.header),
            permissions: response.perm,
        })
    }
}

/// The names of all roles.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RoleNames {
    /// Cluster, member and revision of the response.
    pub header: ResponseHeader,
    /// Names of the roles.
    pub roles: Vec<String>,
}

from_response!(RoleNames: proto::AuthRoleListResponse => roles);
