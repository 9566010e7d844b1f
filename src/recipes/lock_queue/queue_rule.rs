//! Which keys a queue consists of, and for which older keys an entry waits.
//!
//! | rule | own key | waits while there are |
//! |---|---|---|
//! | exclusive | `<name>/<lease>` | older keys |
//! | write | `<name>/write/<claim>` | older keys of readers or writers |
//! | read | `<name>/read/<claim>` | older keys of writers |
//! | permit | `<name>/permits/<claim>` | as many older keys as permits |
//! | participant | `<name>/waiters/<claim>` | too few keys: the double barrier decides |
//!
//! A session has one exclusive key per name, as in Go, so its tasks wait for each other in the process. With the other
//! rules, each claim of a session has a key of its own: `<lease>` is the first one, `<lease>-1` the next one. The number
//! of a claim that has ended is used again.

use bytes::Bytes;

use super::{check_prefix, queue_prefix};
use crate::error::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::recipes) enum QueueRule {
    Exclusive,
    Write,
    Read,
    /// With the number of permits, at least 1.
    Permit(u32),
    Participant,
}

impl QueueRule {
    /// Returns whether a session can have several keys at a time.
    pub(super) fn has_claims(self) -> bool {
        self != Self::Exclusive
    }

    /// Returns the number of older keys at which an entry has to wait.
    pub(super) fn blocking_count(self) -> usize {
        match self {
            Self::Permit(permits) => usize::try_from(permits).unwrap_or(usize::MAX),
            _ => 1,
        }
    }

    /// Returns how many of the newest older keys an entry reads while it waits.
    ///
    /// A single one for a single permit. For `n` permits, any `n` of the older keys would do, because at least one of
    /// them has to go. With almost twice as many, `n` of them have to go before another read is needed, so that the
    /// reads of all waiting entries together stay few: about two per released permit.
    pub(super) fn window(self) -> usize {
        self.blocking_count().saturating_mul(2).saturating_sub(1)
    }

    fn own_folder(self) -> &'static str {
        match self {
            Self::Exclusive => "",
            Self::Write => "write/",
            Self::Read => "read/",
            Self::Permit(_) => "permits/",
            Self::Participant => "waiters/",
        }
    }

    fn blocking_folder(self) -> &'static str {
        match self {
            Self::Write => "",
            Self::Read => Self::Write.own_folder(),
            _ => self.own_folder(),
        }
    }

    /// Folders of the keys of contenders, relative to the blocking folder.
    fn contender_folders(self) -> &'static [&'static str] {
        match self {
            Self::Write => &["write/", "read/"],
            _ => &[""],
        }
    }
}

/// The keys of one queue, for entries with one rule.
#[derive(Debug, Clone)]
pub(in crate::recipes) struct QueueKeys {
    /// `<name>/`.
    pub(in crate::recipes) prefix: Bytes,
    pub(in crate::recipes) rule: QueueRule,
}

impl QueueKeys {
    pub(super) fn new(name: &Bytes, rule: QueueRule) -> Self {
        let prefix = queue_prefix(name);
        Self { prefix, rule }
    }

    /// Fails if the name is not valid, or if there are no permits.
    pub(super) fn check(&self) -> Result<()> {
        if self.rule.blocking_count() == 0 {
            return Err(Error::invalid("a semaphore needs at least one permit"));
        }
        check_prefix(&self.prefix)
    }

    /// Returns the prefix of the keys of entries with this rule.
    pub(in crate::recipes) fn own(&self) -> Bytes {
        self.folder(self.rule.own_folder())
    }

    /// Returns the prefix of the keys for which an entry waits if they are older.
    pub(super) fn blocking(&self) -> Bytes {
        self.folder(self.rule.blocking_folder())
    }

    /// Returns the key of a claim of a session.
    pub(super) fn entry(&self, lease: i64, claim: usize) -> Bytes {
        // As Go formats signed numbers.
        let sign = if lease < 0 { "-" } else { "" };
        let lease = format!("{sign}{:x}", lease.unsigned_abs());
        let claim = match claim {
            0 => String::new(),
            number => format!("-{number}"),
        };
        [&self.own()[..], lease.as_bytes(), claim.as_bytes()]
            .concat()
            .into()
    }

    /// Returns whether a key that blocks this rule was put by a contender.
    pub(super) fn is_contender(&self, key: &[u8], lease: i64) -> bool {
        let folders = self.rule.contender_folders();
        folders.iter().any(|folder| {
            let prefix = [&self.blocking()[..], folder.as_bytes()].concat();
            is_contender(&prefix, key, lease)
        })
    }

    fn folder(&self, folder: &'static str) -> Bytes {
        if folder.is_empty() {
            return self.prefix.clone();
        }
        [&self.prefix[..], folder.as_bytes()].concat().into()
    }
}

/// Returns whether a key was put by a contender: it is bound to a lease, and its name has one part after the prefix.
pub(in crate::recipes) fn is_contender(prefix: &[u8], key: &[u8], lease: i64) -> bool {
    let last_part = key.strip_prefix(prefix);
    lease != 0 && last_part.is_some_and(|part| !part.is_empty() && !part.contains(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(rule: QueueRule) -> QueueKeys {
        QueueKeys {
            prefix: Bytes::from_static(b"jobs/cleaner/"),
            rule,
        }
    }

    #[test]
    fn entry_key_matches_go_client() {
        let exclusive = keys(QueueRule::Exclusive);
        assert_eq!(exclusive.entry(0x0070_ffab, 0), "jobs/cleaner/70ffab");
        assert_eq!(exclusive.entry(-0x0070_ffab, 0), "jobs/cleaner/-70ffab");
        let key = |rule, claim| keys(rule).entry(0x0070_ffab, claim);
        assert_eq!(key(QueueRule::Write, 0), "jobs/cleaner/write/70ffab");
        assert_eq!(key(QueueRule::Read, 12), "jobs/cleaner/read/70ffab-12");
        assert_eq!(
            key(QueueRule::Permit(3), 1),
            "jobs/cleaner/permits/70ffab-1"
        );
        assert_eq!(
            key(QueueRule::Participant, 0),
            "jobs/cleaner/waiters/70ffab"
        );
    }

    #[test]
    fn reader_waits_for_writers_and_writer_for_all() {
        assert_eq!(keys(QueueRule::Read).blocking(), "jobs/cleaner/write/");
        assert_eq!(keys(QueueRule::Write).blocking(), "jobs/cleaner/");
        assert_eq!(
            keys(QueueRule::Permit(2)).blocking(),
            "jobs/cleaner/permits/"
        );
    }

    #[test]
    fn single_permit_reads_only_its_predecessor() {
        assert_eq!(
            (QueueRule::Exclusive.window(), QueueRule::Write.window()),
            (1, 1)
        );
        assert_eq!(QueueRule::Permit(1).window(), 1);
        assert_eq!(QueueRule::Permit(4).window(), 7);
    }

    #[test]
    fn contender_has_lease_and_one_more_part() {
        let cases = [
            ("jobs/70ffab", 0x0070_ffab, true),
            // A leadership that another session has resumed.
            ("jobs/70ffab", 8, true),
            ("jobs/count", 0, false),
            ("jobs/nested/70ffab", 7, false),
            ("jobs/", 7, false),
            ("jobs", 7, false),
        ];
        for (key, lease, expected) in cases {
            assert_eq!(
                is_contender(b"jobs/", key.as_bytes(), lease),
                expected,
                "{key}"
            );
        }
    }

    #[test]
    fn contenders_of_writer_are_readers_and_writers() {
        let is_contender = |key: &str| keys(QueueRule::Write).is_contender(key.as_bytes(), 7);
        // As a Go client puts it.
        assert!(is_contender("jobs/cleaner/read/1718000000000000000"));
        assert!(is_contender("jobs/cleaner/write/70ffab-1"));
        // The key of a mutex with the same name.
        assert!(!is_contender("jobs/cleaner/70ffab"));
        assert!(!is_contender("jobs/cleaner/read/a/b"));
    }
}
