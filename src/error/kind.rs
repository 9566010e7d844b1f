//! Every kind of error, with its description and advice.

/// Declares the kinds: name, description, advice. The same text is documentation and error message.
macro_rules! kinds {
    ($($name:ident: $description:literal, $advice:literal;)*) => {
        /// What went wrong: errors that etcd returns, then errors of the client itself.
        ///
        /// New versions of etcd and of this crate add kinds: a `match` needs a wildcard arm. For decisions, the
        /// predicates [`is_transient`](Self::is_transient), [`is_auth`](Self::is_auth) and
        /// [`is_conflict`](Self::is_conflict) are often enough.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $(
                #[doc = concat!("", $description, ".")]
                #[doc = ""]
                #[doc = $advice]
                $name,
            )*
        }

        impl ErrorKind {
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns a short description.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$name => $description,)* }
            }

            /// Returns what the user can do; empty if there is no general advice.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$name => $advice,)* }
            }
        }
    };
}

impl ErrorKind {
    /// Returns whether the reason may pass by itself: a failed member, an election, too many requests, a deadline. A
    /// later call can succeed. Check the [outcome](crate::Error::outcome) before you repeat a write.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::NoLeader
                | Self::NotSupportedForLearner
                | Self::LeaderChanged
                | Self::Stopped
                | Self::Timeout
                | Self::TimeoutDueToLeaderFailure
                | Self::TimeoutDueToConnectionLost
                | Self::TimeoutWaitingForApply
                | Self::ProposalDropped
                | Self::NotPrimaryLessor
                | Self::ServerCanceled
                | Self::ServerDeadlineExceeded
                | Self::ServerUnavailable
                | Self::ConnectionLost
                | Self::MemberUnresponsive
                | Self::NotServing
                | Self::LeaderLost
                | Self::StaleRead
                | Self::Protocol
                | Self::TooManyRequests
                | Self::Unavailable
                | Self::Internal
                | Self::InvalidAuthToken
                | Self::AuthOldRevision
                | Self::UserEmpty
                | Self::DeadlineExceeded
                | Self::Overloaded
        )
    }

    /// Returns whether credentials, tokens or permissions are the reason.
    pub const fn is_auth(self) -> bool {
        matches!(
            self,
            Self::UserEmpty
                | Self::AuthFailed
                | Self::PermissionDenied
                | Self::InvalidAuthToken
                | Self::AuthOldRevision
                | Self::AuthNotEnabled
                | Self::CredentialsUnavailable
                | Self::MarkersDenied
        )
    }

    /// Returns whether the state of the cluster contradicts the request: its subject already exists, does not exist, or
    /// is not in the required state. Read the state before you try again.
    pub const fn is_conflict(self) -> bool {
        matches!(
            self,
            Self::KeyNotFound
                | Self::LeaseNotFound
                | Self::LeaseExists
                | Self::MemberExists
                | Self::PeerUrlExists
                | Self::MemberNotFound
                | Self::MemberNotLearner
                | Self::LearnerNotReady
                | Self::UserAlreadyExists
                | Self::UserNotFound
                | Self::RoleAlreadyExists
                | Self::RoleNotFound
                | Self::RoleNotGranted
                | Self::PermissionNotGranted
                | Self::DowngradeInProcess
                | Self::NoInflightDowngrade
                | Self::SessionLost
                | Self::LockLost
                | Self::LockBlocked
                | Self::BarrierFull
                | Self::CheckpointMismatch
                | Self::CheckpointTaken
                | Self::DestinationNotEmpty
                | Self::NoElectionLeader
                | Self::Conflict
        )
    }
}

kinds! {
    // Keys, values, transactions.
    EmptyKey: "the key is empty", "provide a key of at least one byte";
    KeyNotFound: "the key does not exist", "create it first, or remove `ignore_value` and `ignore_lease`";
    ValueProvided: "`ignore_value` requires an empty value", "";
    LeaseProvided: "`ignore_lease` requires a request without a lease", "";
    TooManyOps: "the transaction has more operations than the server allows", "split it, or raise --max-txn-ops on the server";
    DuplicateKey: "the transaction writes a key twice", "write each key once per transaction";
    InvalidClientApiVersion: "the server does not support this client's API version", "check the versions of client and server";
    InvalidSortOption: "the server does not support the sort order", "use another sort order or target";
    Compacted: "the revision has been compacted", "read the current state and continue from its revision";
    FutureRevision: "the revision is newer than the newest one of the member", "use an older revision, or wait";
    NoSpace: "the database exceeds its space quota", "compact, defragment, and disarm the NOSPACE alarm";
    RequestTooLarge: "the request is larger than the server allows", "split it, or raise --max-request-bytes on the server";
    TooManyRequests: "the server has too many pending requests", "send fewer requests at once, or retry later";

    // Leases.
    LeaseNotFound: "the lease does not exist", "it expired or was revoked: grant a new one";
    LeaseExists: "a lease with this id already exists", "use another id, or let the client choose one";
    LeaseTtlTooLarge: "the time to live is longer than the server allows", "use a shorter one";
    NotPrimaryLessor: "the member lost its leadership while it processed a lease", "retry";

    // Watches.
    WatchCanceled: "the server cancelled the watch", "open it again from the next revision";

    // Members.
    MemberExists: "a member with this id already exists", "list the members before adding one";
    PeerUrlExists: "a member with this peer URL already exists", "list the members before adding one";
    MemberNotEnoughStarted: "the change would leave fewer started members than a quorum", "start the missing members first";
    MemberBadUrls: "the member URLs are not valid", "use URLs with scheme, host and port";
    MemberNotFound: "the member does not exist", "list the members and use one of their ids";
    MemberNotLearner: "the member is not a learner", "only learners can be promoted";
    LearnerNotReady: "the learner has not caught up with the leader", "promote it later";
    TooManyLearners: "the cluster has the maximum number of learners", "promote or remove one first";
    ClusterIdMismatch: "the member belongs to another cluster", "check the endpoints";
    NotSupportedForLearner: "the member is a learner and does not serve this request", "use a voting member";
    BadLeaderTransferee: "the leadership cannot be moved to this member", "choose a healthy voting member";
    Unhealthy: "the cluster is not healthy enough for this change", "wait until all members are connected";
    Corrupt: "the members have different data", "stop writing and follow etcd's guide to data corruption";

    // Elections run by the server.
    NoElectionLeader: "the election has no leader", "wait until a candidate is elected";

    // Users, roles, tokens.
    RootUserNotExist: "the root user does not exist", "create it before enabling authentication";
    RootRoleNotExist: "the root user does not have the root role", "grant it before enabling authentication";
    UserAlreadyExists: "the user already exists", "choose another name";
    UserEmpty: "the request has no user name or token", "configure credentials with `ClientBuilder::credentials`";
    UserNotFound: "the user does not exist", "check the name";
    RoleAlreadyExists: "the role already exists", "choose another name";
    RoleNotFound: "the role does not exist", "check the name";
    RoleEmpty: "the role name is empty", "provide a name";
    AuthFailed: "the user name or the password is wrong", "check the credentials";
    PermissionNotGiven: "the request contains no permission", "specify keys and access";
    PermissionDenied: "permission denied", "grant a role with this permission";
    RoleNotGranted: "the user does not have the role", "list the roles of the user";
    PermissionNotGranted: "the role does not have the permission", "list the permissions of the role";
    AuthNotEnabled: "authentication is not enabled on the cluster", "enable it, or use no credentials";
    InvalidAuthToken: "the token is not valid", "log in again; with `ClientBuilder::credentials` the client does so itself";
    InvalidAuthManagement: "the change of users or roles is not allowed now", "check the requirements of authentication";
    AuthOldRevision: "users or roles changed after the token was issued", "log in again; with `ClientBuilder::credentials` the client does so itself";

    // State of the member or of the cluster.
    NoLeader: "the member has no leader", "use another member, or wait for the election";
    NotLeader: "the member is not the leader", "send the request to the leader";
    LeaderChanged: "the leader changed while the request was pending", "retry";
    NotCapable: "the cluster does not support this yet", "check that all members are upgraded";
    Stopped: "the member is shutting down", "use another member";
    Timeout: "the cluster did not agree in time", "check for slow disks or a slow network";
    TimeoutDueToLeaderFailure: "the cluster did not agree in time, possibly because its leader failed", "wait for the election";
    TimeoutDueToConnectionLost: "the cluster did not agree in time, possibly because members lost their connections", "check the network between members";
    TimeoutWaitingForApply: "the member took too long to apply earlier requests", "use another member";
    ProposalDropped: "the request was dropped before the cluster processed it", "retry";
    ServerCanceled: "the server cancelled the request", "";
    ServerDeadlineExceeded: "the server gave up before the request was done", "check that a majority of members is up";
    ServerUnavailable: "the server cannot serve requests now", "retry, or use another member";
    Unimplemented: "the server does not support this request", "check the version of the server";

    // Downgrades.
    WrongDowngradeVersionFormat: "the target version of the downgrade is not a version", "write it as major.minor.patch";
    InvalidDowngradeTargetVersion: "the cluster cannot be downgraded to this version", "downgrade by one minor version at a time";
    ClusterVersionUnavailable: "the cluster version is not known yet", "wait until the cluster has started";
    DowngradeInProcess: "a downgrade is in progress", "wait for it, or cancel it first";
    NoInflightDowngrade: "no downgrade is in progress", "";

    // Errors of the client itself.
    InvalidArgument: "the request or an option is not valid", "";
    InvalidEndpoint: "the endpoint is not valid", "";
    NoEndpoints: "there is no endpoint", "";
    Unavailable: "no endpoint is ready", "";
    ConnectionLost: "the connection was lost", "";
    MemberUnresponsive: "the member does not respond", "";
    NotServing: "the member does not serve requests now, probably because of a defragmentation", "use another member, or wait";
    LeaderLost: "the leader changed before the response arrived", "";
    DeadlineExceeded: "the deadline of the call passed", "";
    Overloaded: "the client has the maximum number of calls in flight", "make fewer calls at once, or raise the limit";
    Shutdown: "the client has been shut down", "create a new client";
    ClusterChanged: "the response comes from another cluster than before", "check the endpoints: one client serves one cluster";
    RevisionRegressed: "the cluster is at an older revision than before; it was restored from a backup or lost its data", "read the keys again";
    StaleRead: "the response is older than a state that the client has seen", "retry when a quorum of the members is reachable";
    MixedClusters: "the endpoints belong to different clusters", "give a client the endpoints of one cluster only";
    OldCluster: "the cluster runs an older version than required", "upgrade it, or lower `min_cluster_version`";
    ResponseTooLarge: "the response is larger than the client or a proxy allows", "read in pages, or raise `max_response_size`";
    Protocol: "the response is not valid gRPC", "check that the endpoint is etcd's client URL, with the right scheme";
    TlsFailed: "the TLS connection could not be established", "check the certificates, their names and their dates";
    CredentialsUnavailable: "the credentials are not available", "";
    SessionLost: "the session was lost", "create a new session; keys attached to the old one are deleted";
    LockLost: "the lock or leadership is no longer held", "stop the work that needs it, and acquire it again";
    LockBlocked: "a key under the name of the lock or election was not put by a contender", "delete or move that key, or use another name";
    BarrierFull: "the double barrier already has all its participants", "enter again when they have left, or check the number of participants";
    MarkersDenied: "the user may not write the client's markers", "grant the user's role `readwrite` on the prefix, or choose another one with `ClientBuilder::marker_prefix`";
    Conflict: "other writers changed the keys before every attempt", "try again later, or write these keys from fewer places";
    FileFailed: "a file could not be read or written", "check the path, its permissions and the free space";
    CheckpointMismatch: "the checkpoint does not belong to this mirror", "use another key for the checkpoint, or start with `start_over()`, which copies everything again";
    CheckpointTaken: "another mirror writes with the same checkpoint", "run one mirror per checkpoint, for example in a singleton";
    DestinationNotEmpty: "the destination of the mirror has keys that no mirror wrote", "choose another prefix, or decide with `existing_keys` whether they are deleted or kept";
    CodecFailed: "a value could not be encoded or decoded", "check the type, the codec, and who else writes the key";
    CacheTooLarge: "the keys need more memory than the bound of the cache", "raise `max_bytes`, or cache a longer prefix with fewer keys";
    ConfigRejected: "the validation of the application rejected the configuration", "correct the keys; the last accepted version stays in use";
    Internal: "an actor of the client failed", "retry; if it happens again, report it as a bug";
    Other: "the server returned an error that this client does not know", "see the server's message";
}
