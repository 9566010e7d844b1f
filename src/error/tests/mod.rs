mod rows;

use super::*;
use crate::retry::{
    RpcClass,
    table::{Decision, decide},
};
use ErrorKind as K;
use rows::{Again, NAMED, ROWS};

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
fn every_answer_of_etcd_proves_what_it_proves_and_is_followed_by_the_right_attempt() {
    for &(code, message, kind, outcome, again) in ROWS {
        // The code differs between releases, and must not matter.
        for code in CODES.into_iter().chain([code]) {
            let error = Error::from_status(code, message);
            assert_eq!(error.outcome(), outcome, "{code:?} {message}");
        }
        let after = |class| match decide(class, kind, outcome) {
            Decision::Retry(_) => Again::Always,
            Decision::Refresh => Again::WithToken,
            Decision::Fail => Again::Never,
        };
        let wanted = match again {
            Again::Reads => (Again::Always, Again::Never),
            same => (same, same),
        };
        let found = (after(RpcClass::Read), after(RpcClass::Mutation));
        assert_eq!(found, wanted, "a read and a write after {message:?}");
    }
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
