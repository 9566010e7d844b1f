use super::*;
use ErrorKind as K;

/// Every error of etcd's own table, with the code and the words it comes with.
#[rustfmt::skip]
const ROWS: &[(Code, &str, ErrorKind)] = &[
    (Code::InvalidArgument, "etcdserver: key is not provided", K::EmptyKey),
    (Code::InvalidArgument, "etcdserver: key not found", K::KeyNotFound),
    (Code::InvalidArgument, "etcdserver: value is provided", K::ValueProvided),
    (Code::InvalidArgument, "etcdserver: lease is provided", K::LeaseProvided),
    (Code::InvalidArgument, "etcdserver: too many operations in txn request", K::TooManyOps),
    (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", K::DuplicateKey),
    (Code::InvalidArgument, "etcdserver: invalid client api version", K::InvalidClientApiVersion),
    (Code::InvalidArgument, "etcdserver: invalid sort option", K::InvalidSortOption),
    (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", K::Compacted),
    (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision", K::FutureRevision),
    (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", K::NoSpace),
    (Code::NotFound, "etcdserver: requested lease not found", K::LeaseNotFound),
    (Code::FailedPrecondition, "etcdserver: lease already exists", K::LeaseExists),
    (Code::OutOfRange, "etcdserver: too large lease TTL", K::LeaseTtlTooLarge),
    (Code::Cancelled, "etcdserver: watch canceled", K::WatchCanceled),
    (Code::FailedPrecondition, "etcdserver: member ID already exist", K::MemberExists),
    (Code::FailedPrecondition, "etcdserver: Peer URLs already exists", K::PeerUrlExists),
    (Code::FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members", K::MemberNotEnoughStarted),
    (Code::InvalidArgument, "etcdserver: given member URLs are invalid", K::MemberBadUrls),
    (Code::NotFound, "etcdserver: member not found", K::MemberNotFound),
    (Code::FailedPrecondition, "etcdserver: can only promote a learner member", K::MemberNotLearner),
    (Code::FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader", K::LearnerNotReady),
    (Code::FailedPrecondition, "etcdserver: too many learner members in cluster", K::TooManyLearners),
    (Code::FailedPrecondition, "etcdserver: cluster ID mismatch", K::ClusterIdMismatch),
    (Code::InvalidArgument, "etcdserver: request is too large", K::RequestTooLarge),
    (Code::ResourceExhausted, "etcdserver: too many requests", K::TooManyRequests),
    (Code::FailedPrecondition, "etcdserver: root user does not exist", K::RootUserNotExist),
    (Code::FailedPrecondition, "etcdserver: root user does not have root role", K::RootRoleNotExist),
    (Code::FailedPrecondition, "etcdserver: user name already exists", K::UserAlreadyExists),
    (Code::InvalidArgument, "etcdserver: user name is empty", K::UserEmpty),
    (Code::FailedPrecondition, "etcdserver: user name not found", K::UserNotFound),
    (Code::FailedPrecondition, "etcdserver: role name already exists", K::RoleAlreadyExists),
    (Code::FailedPrecondition, "etcdserver: role name not found", K::RoleNotFound),
    (Code::InvalidArgument, "etcdserver: role name is empty", K::RoleEmpty),
    (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", K::AuthFailed),
    (Code::InvalidArgument, "etcdserver: permission not given", K::PermissionNotGiven),
    (Code::PermissionDenied, "etcdserver: permission denied", K::PermissionDenied),
    (Code::FailedPrecondition, "etcdserver: role is not granted to the user", K::RoleNotGranted),
    (Code::FailedPrecondition, "etcdserver: permission is not granted to the role", K::PermissionNotGranted),
    (Code::FailedPrecondition, "etcdserver: authentication is not enabled", K::AuthNotEnabled),
    (Code::Unauthenticated, "etcdserver: invalid auth token", K::InvalidAuthToken),
    (Code::InvalidArgument, "etcdserver: invalid auth management", K::InvalidAuthManagement),
    (Code::InvalidArgument, "etcdserver: revision of auth store is old", K::AuthOldRevision),
    (Code::Unavailable, "etcdserver: no leader", K::NoLeader),
    (Code::FailedPrecondition, "etcdserver: not leader", K::NotLeader),
    (Code::Unavailable, "etcdserver: leader changed", K::LeaderChanged),
    (Code::FailedPrecondition, "etcdserver: not capable", K::NotCapable),
    (Code::Unavailable, "etcdserver: server stopped", K::Stopped),
    (Code::Unavailable, "etcdserver: request timed out", K::Timeout),
    (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure", K::TimeoutDueToLeaderFailure),
    (Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost", K::TimeoutDueToConnectionLost),
    (Code::Unavailable, "etcdserver: request timed out, waiting for the applied index took too long", K::TimeoutWaitingForApply),
    (Code::Unavailable, "etcdserver: unhealthy cluster", K::Unhealthy),
    (Code::DataLoss, "etcdserver: corrupt cluster", K::Corrupt),
    (Code::FailedPrecondition, "etcdserver: rpc not supported for learner", K::NotSupportedForLearner),
    (Code::FailedPrecondition, "etcdserver: bad leader transferee", K::BadLeaderTransferee),
    (Code::InvalidArgument, "etcdserver: wrong downgrade target version format", K::WrongDowngradeVersionFormat),
    (Code::InvalidArgument, "etcdserver: invalid downgrade target version", K::InvalidDowngradeTargetVersion),
    (Code::FailedPrecondition, "etcdserver: cluster version not found during downgrade", K::ClusterVersionUnavailable),
    (Code::FailedPrecondition, "etcdserver: cluster has a downgrade job in progress", K::DowngradeInProcess),
    (Code::FailedPrecondition, "etcdserver: no inflight downgrade job", K::NoInflightDowngrade),
    (Code::Cancelled, "etcdserver: request canceled", K::ServerCanceled),
    (Code::DeadlineExceeded, "etcdserver: context deadline exceeded", K::ServerDeadlineExceeded),
    // What etcd lets through unmapped, as it was seen on the wire.
    (Code::Unknown, "etcdserver: too many requests", K::TooManyRequests),
    (Code::Unknown, "raft proposal dropped", K::ProposalDropped),
    (Code::Unknown, "not a primary lessor", K::NotPrimaryLessor),
    (Code::Unknown, "context deadline exceeded", K::ServerDeadlineExceeded),
    (Code::Unknown, "mvcc: required revision has been compacted", K::Compacted),
    (Code::Unknown, "raft: stopped", K::Stopped),
];

const CODES: [Code; 17] = [
    Code::Ok,
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

#[test]
fn every_answer_of_etcd_has_its_own_kind() {
    for &(code, message, kind) in ROWS {
        let error = Error::from_status(code, message);
        assert_eq!(error.kind(), kind, "{message}");
        assert_eq!(error.code(), Some(code), "{message}");
        assert_eq!(error.server_message(), Some(message));
    }
    let mut kinds: Vec<_> = ROWS[..63].iter().map(|row| row.2).collect();
    kinds.sort_by_key(|kind| *kind as usize);
    kinds.dedup();
    assert_eq!(kinds.len(), 63, "two rows share a kind");
}

#[test]
fn the_message_counts_more_than_the_code() {
    for code in CODES {
        assert_eq!(
            Error::from_status(code, "etcdserver: no leader").kind(),
            K::NoLeader
        );
        assert_eq!(
            Error::from_status(code, "etcdserver: request timed out").outcome(),
            Outcome::Unknown
        );
    }
}

#[test]
fn prefixes_of_grpc_are_taken_off_before_the_look_up() {
    let reason = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token";
    assert_eq!(strip_rpc_prefix(reason), "etcdserver: invalid auth token");
    assert_eq!(kind_of_message(reason), Some(K::InvalidAuthToken));
    let twice = format!("rpc error: code = Unknown desc = {reason}");
    assert_eq!(kind_of_message(&twice), Some(K::InvalidAuthToken));
    assert_eq!(
        strip_rpc_prefix("rpc error: code = X"),
        "rpc error: code = X"
    );
    assert_eq!(kind_of_message(""), None);
    assert_eq!(kind_of_message("etcdserver: "), None);
}

#[test]
fn an_unknown_message_keeps_its_code_and_text() {
    let error = Error::from_status(Code::ResourceExhausted, "etcdserver: moon too bright");
    assert_eq!(error.kind(), K::Other);
    assert_eq!(error.code(), Some(Code::ResourceExhausted));
    assert_eq!(error.server_message(), Some("etcdserver: moon too bright"));
    assert_eq!(error.outcome(), Outcome::Unknown);
}

#[test]
fn an_unknown_message_is_a_rejection_only_if_its_code_says_so() {
    let rejected = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::FailedPrecondition,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Unauthenticated,
    ];
    for code in CODES {
        let want = if rejected.contains(&code) {
            Outcome::Rejected
        } else {
            Outcome::Unknown
        };
        assert_eq!(Error::from_status(code, "?").outcome(), want, "{code:?}");
    }
}

#[test]
fn a_server_cannot_forge_not_sent() {
    let texts = ROWS.iter().map(|row| row.1.to_owned());
    let own_words = K::ALL
        .iter()
        .flat_map(|kind| [kind.what().to_owned(), format!("{kind:?}")]);
    let forged = [
        "NotSent",
        "not sent",
        "there is no connection available",
        "REFUSED_STREAM",
        "",
    ]
    .map(str::to_owned);
    for text in texts.chain(own_words).chain(forged) {
        for code in CODES {
            assert_ne!(
                Error::from_status(code, &text).outcome(),
                Outcome::NotSent,
                "{code:?} {text}"
            );
        }
    }
    for kind in K::ALL {
        assert_ne!(kind.outcome_of_answer(), Outcome::NotSent, "{kind:?}");
    }
}

#[test]
fn an_answer_that_leaves_the_write_open_is_never_called_a_rejection() {
    for kind in [
        K::Timeout,
        K::TimeoutDueToLeaderFailure,
        K::TimeoutDueToConnectionLost,
        K::TimeoutWaitingForApply,
        K::Stopped,
        K::ServerCanceled,
        K::ServerDeadlineExceeded,
        K::ServerUnavailable,
        K::NoSpace,
    ] {
        assert_eq!(kind.outcome_of_answer(), Outcome::Unknown, "{kind:?}");
    }
    for kind in [
        K::NoLeader,
        K::TooManyRequests,
        K::NotSupportedForLearner,
        K::ProposalDropped,
        K::InvalidAuthToken,
    ] {
        assert_eq!(kind.outcome_of_answer(), Outcome::Rejected, "{kind:?}");
    }
}

#[test]
fn an_error_tells_what_where_how_often_and_what_to_do() {
    let error = Error::from_status(Code::Unavailable, "etcdserver: request timed out")
        .with_endpoint("http://10.0.0.1:2379".into())
        .with_attempts(3);
    assert_eq!(
        error.to_string(),
        "the cluster did not agree in time (the server said Unavailable: \"etcdserver: request timed out\"), at \
         http://10.0.0.1:2379, after 3 attempts; a write may or may not have been applied; look for slow disks or a \
         slow network"
    );
    assert_eq!(
        Error::invalid("limit is negative").to_string(),
        "the request or an option is not valid: limit is negative; correct it; nothing was sent"
    );
    let debug = format!("{error:?}");
    assert!(
        debug.contains("Timeout") && debug.contains("10.0.0.1") && debug.contains("attempts: 3"),
        "{debug}"
    );
}

#[test]
fn an_error_travels_between_threads_and_keeps_its_source() {
    fn travels<T: Send + Sync + Clone + 'static>() {}
    travels::<Error>();
    let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let error = Error::new(K::ConnectionLost, Outcome::Unknown, "")
        .with_source(broken)
        .clone();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("broken pipe"));
    assert_eq!((error.code(), error.server_message()), (None, None));
}

#[test]
fn every_kind_has_words_for_people() {
    for kind in K::ALL {
        assert!(
            !kind.what().is_empty() && !kind.advice().is_empty(),
            "{kind:?}"
        );
        assert!(
            !kind.what().ends_with('.') && !kind.advice().ends_with('.'),
            "{kind:?}"
        );
    }
}

#[test]
fn a_request_that_the_servers_grpc_library_refused_is_too_large() {
    let words = "grpc: received message larger than max (3145736 vs. 2097152)";
    let error = Error::from_status(Code::ResourceExhausted, words);
    assert_eq!(error.kind(), ErrorKind::RequestTooLarge);
    assert_eq!(error.outcome(), Outcome::Rejected);
}
