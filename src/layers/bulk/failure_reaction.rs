//! What follows after a transaction of a bulk failed.

use super::OnUnknown;
use crate::error::{ErrorKind, Outcome};

/// The reaction to a failed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureReaction {
    /// The server allows fewer operations: lower the limit and send the halves.
    SplitOps,
    /// The server allows fewer bytes: lower the limit and send the halves.
    SplitBytes,
    /// One of the writes may be the reason: send the halves, to find out which.
    Isolate,
    /// Send it again after a delay.
    Retry,
    /// Read the keys and compare; send it again if they differ.
    ReadBack,
    /// The writes have failed; others may succeed.
    Fail,
    /// The writes have failed, and others would as well.
    Stop,
}

/// Returns the reaction to the error of a transaction with `ops` operations.
pub(super) fn reaction_to(
    kind: ErrorKind,
    outcome: Outcome,
    ops: usize,
    on_unknown: OnUnknown,
) -> FailureReaction {
    match kind {
        ErrorKind::TooManyOps if ops > 1 => FailureReaction::SplitOps,
        ErrorKind::RequestTooLarge if ops > 1 => FailureReaction::SplitBytes,
        _ if outcome == Outcome::Unknown => match on_unknown {
            // Other transactions fail for the same reason: no space, or a shutdown.
            _ if !kind.is_transient() => FailureReaction::Stop,
            OnUnknown::Report => FailureReaction::Fail,
            OnUnknown::Repeat => FailureReaction::Retry,
            OnUnknown::ReadBack => FailureReaction::ReadBack,
        },
        _ if kind.is_transient() => FailureReaction::Retry,
        _ if !concerns_single_write(kind) => FailureReaction::Stop,
        _ if ops > 1 => FailureReaction::Isolate,
        _ => FailureReaction::Fail,
    }
}

/// Returns whether the reason for a rejection can be one write of the transaction, and not the others.
fn concerns_single_write(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::RequestTooLarge
            | ErrorKind::PermissionDenied
            | ErrorKind::LeaseNotFound
            | ErrorKind::EmptyKey
            | ErrorKind::InvalidArgument
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(kind: ErrorKind, outcome: Outcome, ops: usize) -> FailureReaction {
        reaction_to(kind, outcome, ops, OnUnknown::Repeat)
    }

    #[test]
    fn refused_size_splits_until_one_write_remains() {
        use ErrorKind::{RequestTooLarge, TooManyOps};
        let rejected = Outcome::Rejected;
        assert_eq!(step(TooManyOps, rejected, 2), FailureReaction::SplitOps);
        assert_eq!(step(TooManyOps, rejected, 1), FailureReaction::Stop);
        assert_eq!(
            step(RequestTooLarge, rejected, 2),
            FailureReaction::SplitBytes
        );
        assert_eq!(step(RequestTooLarge, rejected, 1), FailureReaction::Fail);
    }

    #[test]
    fn unknown_outcome_follows_the_option() {
        let step =
            |on_unknown| reaction_to(ErrorKind::ConnectionLost, Outcome::Unknown, 128, on_unknown);
        assert_eq!(step(OnUnknown::Repeat), FailureReaction::Retry);
        assert_eq!(step(OnUnknown::ReadBack), FailureReaction::ReadBack);
        assert_eq!(step(OnUnknown::Report), FailureReaction::Fail);
    }

    #[test]
    fn permanent_unknown_outcome_stops_the_bulk() {
        for on_unknown in [OnUnknown::Repeat, OnUnknown::ReadBack, OnUnknown::Report] {
            let no_space = reaction_to(ErrorKind::NoSpace, Outcome::Unknown, 128, on_unknown);
            assert_eq!(no_space, FailureReaction::Stop);
        }
    }

    #[test]
    fn error_of_one_write_is_isolated() {
        let rejected = Outcome::Rejected;
        for kind in [ErrorKind::PermissionDenied, ErrorKind::LeaseNotFound] {
            assert_eq!(step(kind, rejected, 128), FailureReaction::Isolate);
            assert_eq!(step(kind, rejected, 1), FailureReaction::Fail);
        }
        assert_eq!(
            step(ErrorKind::EmptyKey, Outcome::NotSent, 3),
            FailureReaction::Isolate
        );
    }

    #[test]
    fn error_of_all_writes_stops_the_bulk() {
        for kind in [ErrorKind::NoSpace, ErrorKind::AuthFailed] {
            assert_eq!(step(kind, Outcome::Rejected, 128), FailureReaction::Stop);
        }
        let shutdown = step(ErrorKind::Shutdown, Outcome::NotSent, 128);
        assert_eq!(shutdown, FailureReaction::Stop);
        let no_leader = step(ErrorKind::NoLeader, Outcome::Rejected, 128);
        assert_eq!(no_leader, FailureReaction::Retry);
    }
}
