//! Every way a call can fail, each with its words for people.

/// One row a kind: its name, what happened, what to do. The words are the documentation and the message at once, so
/// the two cannot drift apart.
macro_rules! kinds {
    ($($name:ident: $what:literal, $advice:literal;)*) => {
        /// What went wrong, as one flat list: the answers etcd can give, then what the client itself finds out.
        ///
        /// New kinds appear with new versions of etcd and of this crate: a `match` needs a last arm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $(
                #[doc = concat!("", $what, ".")]
                #[doc = ""]
                #[doc = concat!("To do: ", $advice, ".")]
                $name,
            )*
        }

        impl ErrorKind {
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            /// What happened, in a few words.
            pub const fn what(self) -> &'static str {
                match self { $(Self::$name => $what,)* }
            }

            /// What a person can do about it.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$name => $advice,)* }
            }
        }
    };
}

kinds! {
    // Keys, values, transactions.
    EmptyKey: "the key is empty", "give a key of at least one byte, or a range";
    KeyNotFound: "the key does not exist", "create it first, or drop `ignore_value` and `ignore_lease`";
    ValueProvided: "a value was given together with `ignore_value`", "leave one of the two out";
    LeaseProvided: "a lease was given together with `ignore_lease`", "leave one of the two out";
    TooManyOps: "the transaction has more operations than the server allows", "split it, or raise the server's --max-txn-ops";
    DuplicateKey: "the transaction writes one key twice", "write each key once a transaction";
    InvalidClientApiVersion: "the server does not accept this client's API version", "check the versions of client and server";
    InvalidSortOption: "the sort order is not one the server knows", "use a sort order and target that this server supports";
    Compacted: "the revision has been compacted away", "read the current state and go on from its revision";
    FutureRevision: "the revision is newer than any this member has", "wait until the cluster reaches it, or ask for an older one";
    NoSpace: "the database is over its space quota", "compact, defragment, then disarm the NOSPACE alarm; this very write may have been applied";
    RequestTooLarge: "the request is larger than the server allows", "split it, or raise the server's --max-request-bytes";
    TooManyRequests: "the server has more requests waiting than it can apply", "slow down and try again";

    // Leases.
    LeaseNotFound: "the lease does not exist", "it has expired or was revoked: grant a new one";
    LeaseExists: "a lease with this id exists already", "grant with another id, or let the client choose one";
    LeaseTtlTooLarge: "the time to live is longer than the server allows", "ask for a shorter one";
    NotPrimaryLessor: "the member lost its leadership while it handled a lease", "try again: another member leads now";

    // Watches.
    WatchCanceled: "the server cancelled the watch", "open it again from the next revision";

    // Members.
    MemberExists: "a member with this id exists already", "list the members before adding one";
    PeerUrlExists: "a member with this peer URL exists already", "list the members before adding one";
    MemberNotEnoughStarted: "the change would leave fewer started members than a quorum", "start the missing members first";
    MemberBadUrls: "the member's URLs are not valid", "give URLs with scheme, host and port";
    MemberNotFound: "the member does not exist", "list the members and use one of their ids";
    MemberNotLearner: "the member is not a learner", "only learners can be promoted";
    LearnerNotReady: "the learner is not in sync with the leader yet", "promote it later";
    TooManyLearners: "the cluster has as many learners as it allows", "promote or remove one first";
    ClusterIdMismatch: "the member belongs to another cluster", "check the endpoints";
    NotSupportedForLearner: "the member is a learner and does not serve this", "ask a voting member";
    BadLeaderTransferee: "leadership cannot be moved to this member", "choose a healthy voting member";
    Unhealthy: "the cluster is not healthy enough for this change", "wait until all members are connected";
    Corrupt: "the cluster's members disagree about their data", "stop writing and follow etcd's guide to data corruption";

    // Users, roles, tokens.
    RootUserNotExist: "there is no root user", "create it before enabling authentication";
    RootRoleNotExist: "the root user lacks the root role", "grant it before enabling authentication";
    UserAlreadyExists: "the user exists already", "choose another name";
    UserEmpty: "the request carries no user name or token", "configure a user and a password";
    UserNotFound: "the user does not exist", "check the name";
    RoleAlreadyExists: "the role exists already", "choose another name";
    RoleNotFound: "the role does not exist", "check the name";
    RoleEmpty: "the role's name is empty", "give a name";
    AuthFailed: "the user name or the password is wrong", "check the credentials";
    PermissionNotGiven: "no permission was given", "say which keys and which access to grant";
    PermissionDenied: "the user may not do this", "grant a role that allows it";
    RoleNotGranted: "the user does not have the role", "list the user's roles";
    PermissionNotGranted: "the role does not have the permission", "list the role's permissions";
    AuthNotEnabled: "authentication is not enabled on the cluster", "enable it, or use no credentials";
    InvalidAuthToken: "the token is not valid any more", "authenticate again; with user and password the client does so by itself";
    InvalidAuthManagement: "the change of users or roles is not allowed now", "check what authentication depends on before changing it";
    AuthOldRevision: "users or roles changed since the token was made", "authenticate again; with user and password the client does so by itself";

    // The state of the member or of the cluster.
    NoLeader: "the member sees no leader", "try another member, or wait for the election to end";
    NotLeader: "the member is not the leader", "ask the leader";
    LeaderChanged: "the leader changed while the request waited", "try again";
    NotCapable: "the cluster does not support this yet", "check the cluster version; all members must be upgraded";
    Stopped: "the member is shutting down", "try another member";
    Timeout: "the cluster did not agree in time", "look for slow disks or a slow network";
    TimeoutDueToLeaderFailure: "the cluster did not agree in time, probably as its leader failed", "wait for the election to end";
    TimeoutDueToConnectionLost: "the cluster did not agree in time, probably as members lost their connections", "check the network between members";
    TimeoutWaitingForApply: "the member took too long to catch up", "try another member";
    ProposalDropped: "the request was dropped before the cluster saw it", "try again";
    ServerCanceled: "the server cancelled the request", "see why the call was cancelled before trying again";
    ServerDeadlineExceeded: "the server gave up before the request was done", "check that a majority of members is up";
    ServerUnavailable: "the server says it cannot serve now", "try again, or another member";
    Unimplemented: "the server does not know this request", "check the server's version";

    // Downgrades.
    WrongDowngradeVersionFormat: "the target version of the downgrade cannot be read", "write it as major.minor.patch";
    InvalidDowngradeTargetVersion: "the cluster cannot be downgraded to this version", "go down one minor version at a time";
    ClusterVersionUnavailable: "the cluster version is not known yet", "wait until the cluster has settled";
    DowngradeInProcess: "a downgrade is under way", "let it end or cancel it first";
    NoInflightDowngrade: "no downgrade is under way", "there is nothing to cancel";

    // What the client finds out by itself.
    InvalidArgument: "the request or an option is not valid", "correct it; nothing was sent";
    InvalidEndpoint: "the endpoint is not valid", "write it as http://host:port, https://host:port or unix:///path";
    NoEndpoints: "there is no endpoint to connect to", "give at least one";
    Unavailable: "no member could be reached", "check the endpoints, the network and the TLS settings";
    ConnectionLost: "the connection broke", "see the outcome before trying again";
    MemberUnresponsive: "the member stopped answering while the call waited", "see the outcome before trying again";
    NotServing: "the member says that it does not serve now", "try another member, or wait until it has done what it is at (a defragmentation, mostly)";
    LeaderLost: "the leader was lost while the call waited, so its answer will not come", "see the outcome before trying again";
    DeadlineExceeded: "the call's own deadline passed", "see the outcome before trying again, or allow more time";
    Overloaded: "the client has as many calls under way as it allows", "make fewer calls at once, or raise the limit";
    Shutdown: "the client has been shut down", "make a new client";
    ClusterChanged: "the answer comes from another cluster than before", "check the endpoints: clusters must not be mixed";
    OldCluster: "the cluster is older than this client accepts", "upgrade it, or switch the check off";
    ResponseTooLarge: "the answer is larger than the client accepts", "read in pages, or raise the limit";
    Protocol: "the answer is not gRPC, or is malformed", "check that the endpoint is etcd's client URL, with the right scheme";
    TlsFailed: "the encrypted connection could not be made", "check the certificates, their names and their dates";
    CredentialsUnavailable: "the credentials to log in with could not be had", "check where they come from";
    SessionLost: "the session is lost", "open a new one; what was bound to it is gone or soon will be";
    LockLost: "the lock or the leadership is not held any more", "stop the work that needs it, and ask for it again";
    FileFailed: "a file could not be read or written", "check the path, its rights and the space left";
    Internal: "a part of the client failed", "report it as a bug";
    Other: "the server answered with an error this client does not know", "see the server's own words";
}
