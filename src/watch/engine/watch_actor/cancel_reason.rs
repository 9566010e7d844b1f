//! Decides what a watch does after the server cancelled it.
//!
//! A cancel of the server has no status code, only a compaction revision or a text. Its header revision is 0 or the
//! current one, so the watch never resumes from it, only from its cursor.

/// A cancel, or a refused create, as the server sent it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerCancel {
    /// Whether the server did not create the watch.
    pub(crate) refused: bool,
    /// 0 if the cancel has another reason than a compaction.
    pub(crate) compact_revision: i64,
    pub(crate) reason: String,
}

/// Meaning of a cancel, or of a refused create, that this client did not request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CancelReason {
    /// No event is lost: create the watch again at the cursor.
    Resumable,
    /// The revisions from the cursor up to `revision` (exclusive) are compacted.
    Compacted { revision: i64 },
    /// The user may not read this range.
    PermissionDenied,
    /// The token of the stream is expired or unknown. A stream keeps the token it was opened with, so the watch needs
    /// a new token and a new stream.
    TokenRejected,
    /// The server will refuse the same create again.
    Refused,
    /// The text is unknown: it may be an error that passes, such as one between a proxy and its member, or a
    /// permanent one.
    Unknown,
}

impl CancelReason {
    /// Classifies a cancel, or a refusal of a create that the server never created. `next_revision` is the cursor's.
    pub(super) fn classify(next_revision: i64, cancel: &ServerCancel) -> Self {
        let &ServerCancel {
            refused,
            compact_revision,
            ref reason,
        } = cancel;
        if compact_revision > 0 {
            // The compacted revision itself can still be watched, earlier ones cannot.
            return if next_revision < compact_revision {
                Self::Compacted {
                    revision: compact_revision,
                }
            } else {
                Self::Resumable
            };
        }
        // etcd wraps the texts of typed errors as `rpc error: code = … desc = …`.
        let contains = |text: &str| reason.contains(text);
        if reason.is_empty() && refused {
            // etcd always sends a reason; its proxy sends none for an invalid range.
            Self::Unknown
        } else if reason.is_empty() || contains("duplicate watch ID") || contains("no leader") {
            Self::Resumable
        } else if contains("PermissionDenied") || contains("permission denied") {
            Self::PermissionDenied
        } else if contains("Unauthenticated")
            || contains("invalid auth token")
            || contains("user name is empty")
            || contains("revision of auth store is old")
        {
            Self::TokenRejected
        } else if contains("watcher range is empty") {
            Self::Refused
        } else {
            Self::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CancelReason, ServerCancel};

    fn compaction(compact_revision: i64) -> ServerCancel {
        ServerCancel {
            compact_revision,
            ..ServerCancel::default()
        }
    }

    #[test]
    fn compaction_behind_cursor_is_resumable() {
        for next_revision in [7, 8] {
            let reason = CancelReason::classify(next_revision, &compaction(7));
            assert_eq!(reason, CancelReason::Resumable);
        }
    }

    #[test]
    fn compaction_past_cursor_carries_its_revision() {
        assert_eq!(
            CancelReason::classify(6, &compaction(7)),
            CancelReason::Compacted { revision: 7 }
        );
    }

    #[test]
    fn refusals_are_classified_by_text() {
        let classify = |reason: &str| {
            let cancel = ServerCancel {
                refused: true,
                reason: reason.to_owned(),
                ..ServerCancel::default()
            };
            CancelReason::classify(1, &cancel)
        };
        for denied in [
            "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
            "etcdserver: permission denied",
        ] {
            assert_eq!(classify(denied), CancelReason::PermissionDenied, "{denied}");
        }
        for token in [
            "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
            "rpc error: code = InvalidArgument desc = etcdserver: user name is empty",
            "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old",
        ] {
            assert_eq!(classify(token), CancelReason::TokenRejected, "{token}");
        }
        assert_eq!(
            classify("mvcc: duplicate watch ID provided on the WatchStream"),
            CancelReason::Resumable
        );
        assert_eq!(
            classify("mvcc: watcher range is empty"),
            CancelReason::Refused
        );
        for unknown in ["", "context canceled", "etcdserver: request timed out"] {
            assert_eq!(classify(unknown), CancelReason::Unknown, "{unknown}");
        }
    }

    #[test]
    fn cancel_without_reason_is_resumable_once_created() {
        let reason = CancelReason::classify(1, &ServerCancel::default());
        assert_eq!(reason, CancelReason::Resumable);
    }
}
