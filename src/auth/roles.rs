//! Roles and what they allow.

use super::administration::rpc;
use crate::{
    client::Client,
    error::{Error, Result},
    proto::{
        self, AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGetRequest,
        AuthRoleGrantPermissionRequest, AuthRoleListRequest, AuthRoleRevokePermissionRequest,
        ResponseHeader, authpb,
    },
    request::{
        HeaderResponse, IntoBytes, Request, answers, header, header_responses, key_range::Span,
    },
    retry::RpcClass,
    transport::grpc,
};

pub use crate::proto::authpb::permission::Type as Access;

header_responses!(
    proto::AuthRoleAddResponse,
    proto::AuthRoleDeleteResponse,
    proto::AuthRoleGrantPermissionResponse,
    proto::AuthRoleRevokePermissionResponse,
);
answers!(proto::AuthRoleListResponse, proto::AuthRoleGetResponse);

/// What a role allows with a key, or with `.prefix()`, `.range(end)` or `.from_key()` with many.
#[derive(Debug, Clone)]
#[must_use = "a permission does nothing until it is granted or revoked"]
pub struct Permission {
    access: Access,
    span: Span,
}

impl Permission {
    fn new(access: Access, key: impl IntoBytes) -> Self {
        Self {
            access,
            span: Span::key(key.into_bytes()),
        }
    }

    /// To read.
    pub fn read(key: impl IntoBytes) -> Self {
        Self::new(Access::Read, key)
    }

    /// To write.
    pub fn write(key: impl IntoBytes) -> Self {
        Self::new(Access::Write, key)
    }

    /// To read and write.
    pub fn read_write(key: impl IntoBytes) -> Self {
        Self::new(Access::Readwrite, key)
    }

    /// All keys that begin with the key.
    pub fn prefix(mut self) -> Self {
        self.span.prefix();
        self
    }

    /// All keys from the key up to this one, which is not among them.
    pub fn range(mut self, end: impl IntoBytes) -> Self {
        self.span.until(end.into_bytes());
        self
    }

    /// All keys from the key on.
    pub fn from_key(mut self) -> Self {
        self.span.onwards();
        self
    }
}

/// Roles and what they allow; see [`Client::roles`].
#[derive(Debug, Clone)]
pub struct Roles<C = Client>(C);

impl Client {
    /// Roles and what they allow.
    pub fn roles(&self) -> Roles {
        Roles(self.clone())
    }
}

/// The same, bound to no client yet: messages to the actor [`Etcd`](crate::Etcd), or to be bound with `.on(&client)`.
pub fn requests() -> Roles<()> {
    Roles(())
}

impl<C: Clone> Roles<C> {
    /// Adds a role, which allows nothing yet.
    pub fn add(&self, name: impl Into<String>) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/RoleAdd", RpcClass::Mutation);
        let request = AuthRoleAddRequest { name: name.into() };
        Request::new::<proto::AuthRoleAddResponse>(&self.0, rpc, &request)
    }

    /// Removes a role, from its users, too.
    pub fn delete(&self, name: impl Into<String>) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/RoleDelete", RpcClass::Mutation);
        let request = AuthRoleDeleteRequest { role: name.into() };
        Request::new::<proto::AuthRoleDeleteResponse>(&self.0, rpc, &request)
    }

    /// Lets a role do something.
    pub fn grant(
        &self,
        name: impl Into<String>,
        permission: Permission,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc("/etcdserverpb.Auth/RoleGrantPermission", RpcClass::Mutation);
        let Permission { access, span } = permission;
        let name = name.into();
        let body = span.resolve().and_then(|(key, range_end)| {
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

    /// Takes a permission back: exactly the keys that were granted at once, whatever the access.
    pub fn revoke(
        &self,
        name: impl Into<String>,
        permission: Permission,
    ) -> Request<HeaderResponse, C> {
        let rpc = rpc(
            "/etcdserverpb.Auth/RoleRevokePermission",
            RpcClass::Mutation,
        );
        let Permission { span, .. } = permission;
        let role = name.into();
        let body = span.resolve().and_then(|(key, range_end)| {
            grpc::encode(&AuthRoleRevokePermissionRequest {
                role,
                key,
                range_end,
            })
        });
        Request::with_body::<proto::AuthRoleRevokePermissionResponse>(&self.0, rpc, body)
    }

    /// What a role allows.
    pub fn get(&self, name: impl Into<String>) -> Request<RolePermissions, C> {
        let rpc = rpc("/etcdserverpb.Auth/RoleGet", RpcClass::Read);
        let request = AuthRoleGetRequest { role: name.into() };
        Request::new::<proto::AuthRoleGetResponse>(&self.0, rpc, &request)
    }

    /// The names of all roles.
    pub fn list(&self) -> Request<RoleNames, C> {
        let rpc = rpc("/etcdserverpb.Auth/RoleList", RpcClass::Read);
        Request::new::<proto::AuthRoleListResponse>(&self.0, rpc, &AuthRoleListRequest {})
    }
}

/// What a role allows.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RolePermissions {
    /// Who answered.
    pub header: ResponseHeader,
    /// The permissions as etcd keeps them.
    pub permissions: Vec<authpb::Permission>,
}

impl TryFrom<proto::AuthRoleGetResponse> for RolePermissions {
    type Error = Error;

    fn try_from(answer: proto::AuthRoleGetResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            permissions: answer.perm,
        })
    }
}

/// All roles.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RoleNames {
    /// Who answered.
    pub header: ResponseHeader,
    /// Their names.
    pub roles: Vec<String>,
}

impl TryFrom<proto::AuthRoleListResponse> for RoleNames {
    type Error = Error;

    fn try_from(answer: proto::AuthRoleListResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            roles: answer.roles,
        })
    }
}
