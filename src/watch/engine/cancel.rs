//! What a cancelled watch may still do.
//!
//! A cancel has no code, only a compaction revision or a text, and its header says revision 0 or the
//! current one: neither is a place to resume from. The place is the cursor, always.

/// What the server's cancel (or refusal to create) means for a watch that did not ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// Nothing is lost: create it again from the cursor.
    Resumable,
    /// Revisions from the cursor up to this one are gone from the history.
    Compacted { revision: i64 },
    /// The user may not read this range.
    PermissionDenied,
    /// The stream's token is too old or unknown: authenticate, open a *new* stream, resume there. A
    /// stream keeps the token it was opened with.
    TokenRejected,
    /// Refused for a reason that a second try will not change.
    Refused(String),
}

impl Cancelled {
    /// `next_revision` is the cursor's, `compact_revision` and `reason` are the server's.
    pub(crate) fn classify(next_revision: i64, compact_revision: i64, reason: &str) -> Self {
        if compact_revision > 0 {
            // The compacted revision itself can still be watched; those before it can't.
            return if next_revision < compact_revision {
                Self::Compacted {
                    revision: compact_revision,
                }
            } else {
                Self::Resumable
            };
        }
        // Texts of typed errors are wrapped as `rpc error: code = … desc = …`.
        let says = |text: &str| reason.contains(text);
        if reason.is_empty() || says("duplicate watch ID") || says("no leader") {
            Self::Resumable
        } else if says("PermissionDenied") || says("permission denied") {
            Self::PermissionDenied
        } else if says("Unauthenticated")
            || says("invalid auth token")
            || says("user name is empty")
            || says("revision of auth store is old")
        {
            Self::TokenRejected
        } else {
            Self::Refused(reason.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cancelled;

    #[test]
    fn compaction_behind_the_cursor_costs_nothing() {
        assert_eq!(Cancelled::classify(7, 7, ""), Cancelled::Resumable);
        assert_eq!(Cancelled::classify(8, 7, ""), Cancelled::Resumable);
    }

    #[test]
    fn compaction_past_the_cursor_is_told_with_its_revision() {
        assert_eq!(
            Cancelled::classify(6, 7, ""),
            Cancelled::Compacted { revision: 7 }
        );
    }

    #[test]
    fn refusals_are_told_apart_by_their_text() {
        let of = |reason| Cancelled::classify(1, 0, reason);
        assert_eq!(
            of("rpc error: code = PermissionDenied desc = etcdserver: permission denied"),
            Cancelled::PermissionDenied
        );
        for token in [
            "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
            "rpc error: code = InvalidArgument desc = etcdserver: user name is empty",
            "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old",
        ] {
            assert_eq!(of(token), Cancelled::TokenRejected, "{token}");
        }
        assert_eq!(
            of("mvcc: duplicate watch ID provided on the WatchStream"),
            Cancelled::Resumable
        );
        assert_eq!(of(""), Cancelled::Resumable);
        assert_eq!(
            of("mvcc: watcher range is empty"),
            Cancelled::Refused("mvcc: watcher range is empty".to_owned())
        );
    }
}
