mod etcd_errors;

use super::*;
use crate::{
    proto::rpc,
    retry::{RetryDecision, RpcClass, decision::decide},
};
use ErrorKind as K;
use etcd_errors::{NAMED, ROWS, Retried};

#[test]
fn every_etcd_error_has_its_own_kind() {
    for &(code, message, kind, ..) in ROWS {
        let error = Error::from_status(code, message);
        assert_eq!(error.kind(), kind, "{message}");
        assert_eq!(error.code(), Some(code), "{message}");
        assert_eq!(error.server_message(), Some(message));
    }
    let mut kinds: Vec<_> = ROWS[..NAMED].iter().map(|row| row.2).collect();
    kinds.sort_by_key(|kind| *kind as usize);
    kinds.dedup();
    assert_eq!(kinds.len(), NAMED, "two rows share a kind");
}

#[test]
fn every_etcd_error_has_its_outcome_and_retry() {
    for &(code, message, kind, outcome, retried) in ROWS {
        // The code differs between releases and must be ignored.
        for code in Code::ALL.into_iter().chain([code]) {
            let error = Error::from_status(code, message);
            assert_eq!(error.outcome(), outcome, "{code:?} {message}");
        }
        let after = |class| match decide(class, kind, outcome) {
            RetryDecision::RenewToken => Retried::WithToken,
            RetryDecision::Fail => Retried::Never,
            _ => Retried::Always,
        };
        let wanted = match retried {
            Retried::Reads => (Retried::Always, Retried::Never),
            same => (same, same),
        };
        let found = (after(RpcClass::Read), after(RpcClass::Mutation));
        assert_eq!(found, wanted, "a read and a write after {message:?}");
    }
}

#[test]
fn message_takes_precedence_over_code() {
    for code in Code::ALL {
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
fn rpc_prefixes_are_removed() {
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
fn unknown_message_keeps_code_and_text() {
    let error = Error::from_status(Code::ResourceExhausted, "etcdserver: moon too bright");
    assert_eq!(error.kind(), K::Other);
    assert_eq!(error.code(), Some(Code::ResourceExhausted));
    assert_eq!(error.server_message(), Some("etcdserver: moon too bright"));
    assert_eq!(error.outcome(), Outcome::Unknown);
}

#[test]
fn unknown_message_is_classified_by_code() {
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
    for code in Code::ALL {
        let want = if rejected.contains(&code) {
            Outcome::Rejected
        } else {
            Outcome::Unknown
        };
        assert_eq!(Error::from_status(code, "?").outcome(), want, "{code:?}");
    }
}

#[test]
fn server_cannot_forge_not_sent() {
    let texts = ROWS.iter().map(|row| row.1.to_owned());
    let own_texts = K::ALL
        .iter()
        .flat_map(|kind| [kind.description().to_owned(), format!("{kind:?}")]);
    let forged = [
        "NotSent",
        "not sent",
        "there is no connection available",
        "REFUSED_STREAM",
        "",
    ]
    .map(str::to_owned);
    for text in texts.chain(own_texts).chain(forged) {
        for code in Code::ALL {
            assert_ne!(
                Error::from_status(code, &text).outcome(),
                Outcome::NotSent,
                "{code:?} {text}"
            );
        }
    }
    for kind in K::ALL {
        assert_ne!(kind.outcome_of_response(), Outcome::NotSent, "{kind:?}");
    }
}

#[test]
fn ambiguous_response_is_not_a_rejection() {
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
        assert_eq!(kind.outcome_of_response(), Outcome::Unknown, "{kind:?}");
    }
    for kind in [
        K::NoLeader,
        K::TooManyRequests,
        K::NotSupportedForLearner,
        K::ProposalDropped,
        K::InvalidAuthToken,
    ] {
        assert_eq!(kind.outcome_of_response(), Outcome::Rejected, "{kind:?}");
    }
}

#[test]
fn error_prints_operation_endpoint_reason_and_advice() {
    let error = Error::from_status(Code::Unavailable, "etcdserver: request timed out")
        .with_rpc(rpc::PUT)
        .with_endpoint("http://10.0.0.1:2379".into())
        .with_attempts(3);
    assert_eq!(
        error.to_string(),
        "put failed at http://10.0.0.1:2379 after 3 attempts: the cluster did not agree in time \
         (Unavailable: \"etcdserver: request timed out\"); it may have been applied (outcome unknown); \
         check for slow disks or a slow network"
    );
    let read = error.clone().with_rpc(rpc::RANGE).to_string();
    assert!(!read.contains("applied"), "{read}");
    assert_eq!(
        Error::invalid("`limit` must not be negative, but is -1").to_string(),
        "`limit` must not be negative, but is -1"
    );
    assert_eq!(
        Error::shut_down().to_string(),
        "the client has been shut down; create a new client"
    );
    let denied = Error::from_status(Code::PermissionDenied, "etcdserver: permission denied")
        .with_rpc(rpc::RANGE)
        .with_user(Some("app".into()));
    assert_eq!(
        denied.to_string(),
        "get failed: permission denied for user `app` (PermissionDenied: \"etcdserver: permission denied\"); \
         grant a role with this permission"
    );
    let debug = format!("{error:?}");
    assert!(
        debug.contains("Timeout") && debug.contains("10.0.0.1") && debug.contains("attempts: 3"),
        "{debug}"
    );
}

#[test]
fn error_is_sendable_and_keeps_its_source() {
    fn assert_sendable<T: Send + Sync + Clone + 'static>() {}
    assert_sendable::<Error>();
    let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let error = Error::new(K::ConnectionLost, Outcome::Unknown, "")
        .with_source(broken)
        .clone();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("broken pipe"));
    assert_eq!((error.code(), error.server_message()), (None, None));
}

#[test]
fn every_kind_has_a_description() {
    for kind in K::ALL {
        let texts = [kind.description(), kind.advice()];
        assert!(!texts[0].is_empty(), "{kind:?}");
        for text in texts {
            assert!(!text.ends_with('.'), "{kind:?}");
            assert!(!text.starts_with(char::is_uppercase), "{kind:?}");
        }
    }
}

#[test]
fn retryable_errors_are_safe_to_repeat() {
    let lost = |outcome, rpc| Error::new(K::ConnectionLost, outcome, "").with_rpc(rpc);
    assert!(lost(Outcome::NotSent, rpc::PUT).is_retryable());
    assert!(lost(Outcome::Unknown, rpc::RANGE).is_retryable());
    assert!(!lost(Outcome::Unknown, rpc::PUT).is_retryable());
    let denied = Error::new(K::PermissionDenied, Outcome::Rejected, "").with_rpc(rpc::PUT);
    assert!(denied.is_auth() && !denied.is_retryable());
    assert!(K::LeaseExists.is_conflict() && !K::LeaseExists.is_transient());
}

#[test]
fn grpc_size_limit_is_request_too_large() {
    let message = "grpc: received message larger than max (3145736 vs. 2097152)";
    let error = Error::from_status(Code::ResourceExhausted, message);
    assert_eq!(error.kind(), ErrorKind::RequestTooLarge);
    assert_eq!(error.outcome(), Outcome::Rejected);
    let about_request = error.clone().with_request_size(3_145_736);
    assert_eq!(about_request.outcome(), Outcome::Rejected);
    let about_response = error.with_request_size(20);
    assert_eq!(about_response.kind(), ErrorKind::ResponseTooLarge);
    assert_eq!(about_response.outcome(), Outcome::Unknown);
    let etcd_limit = Error::from_status(Code::InvalidArgument, "etcdserver: request is too large");
    assert_eq!(
        etcd_limit.with_request_size(20).outcome(),
        Outcome::Rejected
    );
}
