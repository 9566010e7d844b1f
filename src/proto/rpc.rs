//! Every RPC that the client calls, declared once: name, path, retry class, and requirements on the member.

/// Effect of sending a request twice. Determines whether a failed attempt may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RpcClass {
    /// Changes nothing: a range, a read-only transaction, a status, a member list.
    Read,
    /// Changes something, but applying it twice equals applying it once: authenticate, disarm an alarm.
    Idempotent,
    /// Grants a lease under an id that this client chose at random. A grant under an id chosen by the user is a
    /// [`Mutation`](Self::Mutation), because "already exists" does not show which client created the lease.
    Grant,
    /// Revokes a lease.
    Revoke,
    /// Every other change. Applying it twice differs from applying it once.
    Mutation,
}

/// The rejections of a transaction by one member after which other members may have applied it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitRejection {
    /// None: every rejection proves that no member applied it.
    None,
    /// A missing permission.
    Permission,
    /// A missing permission, a missing user, or a token from before a change of permissions.
    UserOrPermission,
}

/// An RPC and how the client calls it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rpc {
    /// Name of the operation in error messages: `put failed: …`.
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) class: RpcClass,
    /// Whether a member without a leader can serve it.
    pub(crate) leaderless: bool,
    /// Whether the server responds only after another client has acted: a lock, a campaign.
    pub(crate) blocking: bool,
    pub(crate) split_rejection: SplitRejection,
}

impl Rpc {
    const fn new(name: &'static str, path: &'static str, class: RpcClass) -> Self {
        Self {
            name,
            path,
            class,
            leaderless: false,
            blocking: false,
            split_rejection: SplitRejection::None,
        }
    }

    const fn read(name: &'static str, path: &'static str) -> Self {
        Self::new(name, path, RpcClass::Read)
    }

    const fn mutation(name: &'static str, path: &'static str) -> Self {
        Self::new(name, path, RpcClass::Mutation)
    }

    const fn idempotent(name: &'static str, path: &'static str) -> Self {
        Self::new(name, path, RpcClass::Idempotent)
    }

    /// Returns the RPC in the variant that a member serves without a leader.
    pub(crate) const fn leaderless(mut self) -> Self {
        self.leaderless = true;
        self
    }

    const fn blocking(mut self) -> Self {
        self.blocking = true;
        self
    }

    /// Returns the RPC with another class, which depends on the request: a transaction without writes is a read.
    pub(crate) const fn with_class(mut self, class: RpcClass) -> Self {
        self.class = class;
        self
    }

    pub(crate) const fn with_split_rejection(mut self, split_rejection: SplitRejection) -> Self {
        self.split_rejection = split_rejection;
        self
    }

    /// Returns whether the RPC can change the cluster, so that the outcome of a failed call matters.
    pub(crate) const fn is_write(self) -> bool {
        !matches!(self.class, RpcClass::Read)
    }
}

macro_rules! rpcs {
    ($($constant:ident = $rpc:expr;)*) => {
        $(pub(crate) const $constant: Rpc = $rpc;)*

        #[cfg(test)]
        const ALL: &[Rpc] = &[$($constant),*];
    };
}

rpcs! {
    // KV
    RANGE = Rpc::read("get", "/etcdserverpb.KV/Range");
    RANGE_STREAM = Rpc::read("range stream", "/etcdserverpb.KV/RangeStream");
    PUT = Rpc::mutation("put", "/etcdserverpb.KV/Put");
    DELETE_RANGE = Rpc::mutation("delete", "/etcdserverpb.KV/DeleteRange");
    TXN = Rpc::mutation("transaction", "/etcdserverpb.KV/Txn");
    COMPACT = Rpc::mutation("compaction", "/etcdserverpb.KV/Compact");

    // Watch
    WATCH = Rpc::read("watch", "/etcdserverpb.Watch/Watch");

    // Lease
    LEASE_GRANT = Rpc::new("lease grant", "/etcdserverpb.Lease/LeaseGrant", RpcClass::Grant);
    LEASE_REVOKE = Rpc::new("lease revoke", "/etcdserverpb.Lease/LeaseRevoke", RpcClass::Revoke);
    LEASE_KEEP_ALIVE = Rpc::idempotent("lease keepalive", "/etcdserverpb.Lease/LeaseKeepAlive");
    LEASE_TIME_TO_LIVE = Rpc::read("lease time to live", "/etcdserverpb.Lease/LeaseTimeToLive");
    LEASE_LEASES = Rpc::read("lease list", "/etcdserverpb.Lease/LeaseLeases");

    // Cluster
    MEMBER_LIST = Rpc::read("member list", "/etcdserverpb.Cluster/MemberList");
    MEMBER_ADD = Rpc::mutation("member add", "/etcdserverpb.Cluster/MemberAdd");
    MEMBER_PROMOTE = Rpc::mutation("member promote", "/etcdserverpb.Cluster/MemberPromote");
    MEMBER_REMOVE = Rpc::mutation("member remove", "/etcdserverpb.Cluster/MemberRemove");
    MEMBER_UPDATE = Rpc::mutation("member update", "/etcdserverpb.Cluster/MemberUpdate");

    // Maintenance
    STATUS = Rpc::read("status", "/etcdserverpb.Maintenance/Status").leaderless();
    ALARM = Rpc::read("alarm", "/etcdserverpb.Maintenance/Alarm");
    DEFRAGMENT = Rpc::mutation("defragmentation", "/etcdserverpb.Maintenance/Defragment").leaderless();
    HASH = Rpc::read("hash", "/etcdserverpb.Maintenance/Hash").leaderless();
    HASH_KV = Rpc::read("hash of keys", "/etcdserverpb.Maintenance/HashKV").leaderless();
    SNAPSHOT = Rpc::read("snapshot", "/etcdserverpb.Maintenance/Snapshot");
    MOVE_LEADER = Rpc::mutation("leader move", "/etcdserverpb.Maintenance/MoveLeader");
    DOWNGRADE = Rpc::mutation("downgrade", "/etcdserverpb.Maintenance/Downgrade");

    // Auth
    AUTHENTICATE = Rpc::idempotent("login", "/etcdserverpb.Auth/Authenticate");
    AUTH_ENABLE = Rpc::mutation("auth enable", "/etcdserverpb.Auth/AuthEnable");
    AUTH_DISABLE = Rpc::mutation("auth disable", "/etcdserverpb.Auth/AuthDisable");
    AUTH_STATUS = Rpc::read("auth status", "/etcdserverpb.Auth/AuthStatus");
    USER_ADD = Rpc::mutation("user add", "/etcdserverpb.Auth/UserAdd");
    USER_DELETE = Rpc::mutation("user delete", "/etcdserverpb.Auth/UserDelete");
    USER_CHANGE_PASSWORD = Rpc::mutation("password change", "/etcdserverpb.Auth/UserChangePassword");
    USER_GRANT_ROLE = Rpc::mutation("role grant", "/etcdserverpb.Auth/UserGrantRole");
    USER_REVOKE_ROLE = Rpc::mutation("role revoke", "/etcdserverpb.Auth/UserRevokeRole");
    USER_GET = Rpc::read("user get", "/etcdserverpb.Auth/UserGet");
    USER_LIST = Rpc::read("user list", "/etcdserverpb.Auth/UserList");
    ROLE_ADD = Rpc::mutation("role add", "/etcdserverpb.Auth/RoleAdd");
    ROLE_DELETE = Rpc::mutation("role delete", "/etcdserverpb.Auth/RoleDelete");
    ROLE_GRANT_PERMISSION = Rpc::mutation("permission grant", "/etcdserverpb.Auth/RoleGrantPermission");
    ROLE_REVOKE_PERMISSION = Rpc::mutation("permission revoke", "/etcdserverpb.Auth/RoleRevokePermission");
    ROLE_GET = Rpc::read("role get", "/etcdserverpb.Auth/RoleGet");
    ROLE_LIST = Rpc::read("role list", "/etcdserverpb.Auth/RoleList");

    // Locks and elections on the server
    SERVER_LOCK = Rpc::mutation("server lock", "/v3lockpb.Lock/Lock").blocking();
    // Not idempotent: a late copy would delete the key of the next holder, which has the same name.
    SERVER_UNLOCK = Rpc::mutation("server unlock", "/v3lockpb.Lock/Unlock");
    SERVER_CAMPAIGN = Rpc::mutation("server campaign", "/v3electionpb.Election/Campaign").blocking();
    // Not idempotent: a late copy would restore an old value.
    SERVER_PROCLAIM = Rpc::mutation("server proclaim", "/v3electionpb.Election/Proclaim");
    SERVER_RESIGN = Rpc::idempotent("server resign", "/v3electionpb.Election/Resign");
    SERVER_LEADER = Rpc::read("server leader", "/v3electionpb.Election/Leader");
    SERVER_OBSERVE = Rpc::read("server observe", "/v3electionpb.Election/Observe");

    // Health
    HEALTH_CHECK = Rpc::read("health check", "/grpc.health.v1.Health/Check").leaderless();
    HEALTH_WATCH = Rpc::read("health watch", "/grpc.health.v1.Health/Watch").leaderless();
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_rpc_is_declared_once() {
        let paths: HashSet<_> = ALL.iter().map(|rpc| rpc.path).collect();
        let names: HashSet<_> = ALL.iter().map(|rpc| rpc.name).collect();
        assert_eq!((paths.len(), names.len()), (ALL.len(), ALL.len()));
    }
}
