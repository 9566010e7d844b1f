//! Decides what a watch does after the server cancelled it.
//!
//! A cancel of the server has no status code, only a compaction revision or a text. Its header revision is 0 or the
//! current one, so the watch never resumes from it, only from its cursor.

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
    Refused(String),
}

impl CancelReason {
    /// Classifies a cancel. `next_revision` is the cursor's; `compact_revision` and `reason` are the server's.
    pub(super) fn classify(next_revision: i64, compact_revision: i64, reason: &str) -> Self {
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
        if reason.is_empty() || contains("duplicate watch ID") || contains("no leader") {
            Self::Resumable
        } else if contains("PermissionDenied") || contains("permission denied") {
            Self::PermissionDenied
        } else if contains("Unauthenticated")
            || contains("invalid auth token")
            || contains("user name is empty")
            || contains("revision of auth store is old")
        {
            Self::TokenRejected
        } else {
            Self::Refused(reason.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CancelReason;

    #[test]
    fn compaction_behind_cursor_is_resumable() {
        assert_eq!(CancelReason::classify(7, 7, ""), CancelReason::Resumable);
        assert_eq!(CancelReason::classify(8, 7, ""), CancelReason::Resumable);
    }

    #[test]
    fn compaction_past_cursor_carries_its_revision() {
        assert_eq!(
            CancelReason::classify(6, 7, ""),
            CancelReason::Compacted { revision: 7 }
        );
    }

    #[test]
    fn refusals_are_classified_by_text() {
        let classify = |reason| CancelReason::classify(1, 0, reason);
        assert_eq!(
            classify("rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
            CancelReason::PermissionDenied
        );
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
        assert_eq!(classify(""), CancelReason::Resumable);
        assert_eq!(
            classify("mvcc: watcher range is empty"),
            CancelReason::Refused("mvcc: watcher range is empty".to_owned())
        );
    }
}
