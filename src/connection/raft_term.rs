//! Whether a write that waits for its response may be lost because the leader changed.
//!
//! The next leader commits some writes of its predecessor and drops the others without reporting it. The member
//! responds to a dropped write only after its own timeout. A newer raft term in other responses or in a probe reveals
//! the change earlier. The write may have been applied nevertheless.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::RaftStatus;

/// Returns whether the leader changed after a request was sent.
///
/// `sent_term` is the term in which the request was sent, if known. Otherwise `current` is compared with
/// `first_status`, the first status received after the request was sent.
pub(crate) fn leader_changed(
    sent_term: Option<u64>,
    first_status: Option<&RaftStatus>,
    current: &RaftStatus,
) -> bool {
    match (sent_term, first_status) {
        (Some(term), _) => current.leader != 0 && current.term > term,
        (None, Some(first)) => {
            current.leader != 0 && (current.term > first.term || current.leader != first.leader)
        }
        (None, None) => false,
    }
}

/// Newest raft term of the responses on a connection, and when it was last received. Updated by every response, so it
/// uses atomics instead of a lock.
pub(super) struct ObservedTerm {
    origin: Instant,
    term: AtomicU64,
    /// Time of the last response with this term, in milliseconds after `origin`.
    at_millis: AtomicU64,
}

impl ObservedTerm {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            origin: now,
            term: AtomicU64::new(0),
            at_millis: AtomicU64::new(0),
        }
    }

    pub(super) fn observe(&self, term: u64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.origin).as_millis();
        let at = u64::try_from(elapsed).unwrap_or(u64::MAX);
        // A late response from before a change of the leader must not restore the old term.
        if self.term.fetch_max(term, Ordering::Relaxed) <= term {
            self.at_millis.fetch_max(at, Ordering::Relaxed);
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    pub(super) fn mark(&self) -> TermMark {
        TermMark {
            term: self.last(),
            observed: self.origin + Duration::from_millis(self.at_millis.load(Ordering::Relaxed)),
        }
    }
}

/// A raft term and the time of the last response that carried it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TermMark {
    term: u64,
    observed: Instant,
}

impl TermMark {
    /// A term that was last observed longer ago may have ended before the request was sent.
    const RECENT: Duration = Duration::from_secs(2);

    /// Returns the term in which a request was sent at this time, if it is known.
    pub(crate) fn at(self, sent: Instant) -> Option<u64> {
        let known = self.term != 0 && sent.saturating_duration_since(self.observed) < Self::RECENT;
        known.then_some(self.term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(at: Instant, term: u64, index: u64) -> RaftStatus {
        RaftStatus {
            at,
            requested_at: at,
            cluster: 1,
            member: 2,
            leader: 1,
            term,
            index,
            learner: false,
            revision: 0,
            version: None,
        }
    }

    #[test]
    fn newer_term_reveals_lost_write() {
        let now = Instant::now();
        let current = status(now, 6, 100);
        assert!(leader_changed(Some(5), None, &current));
        assert!(!leader_changed(Some(6), None, &current));
        assert!(
            !leader_changed(None, None, &current),
            "nothing to compare with"
        );
        assert!(leader_changed(None, Some(&status(now, 5, 90)), &current));
        let mut electing = current;
        electing.leader = 0;
        assert!(
            !leader_changed(Some(5), None, &electing),
            "the old leader may win the election"
        );
    }

    #[test]
    fn term_mark_is_known_only_while_recent() {
        let start = Instant::now();
        let observed = ObservedTerm::new(start);
        assert_eq!(observed.mark().at(start), None, "no response yet");
        observed.observe(7, start + Duration::from_secs(10));
        assert_eq!(observed.last(), 7);
        let mark = observed.mark();
        assert_eq!(mark.at(start + Duration::from_secs(11)), Some(7));
        assert_eq!(mark.at(start + Duration::from_secs(12)), None);
    }

    #[test]
    fn late_response_does_not_lower_the_term() {
        let start = Instant::now();
        let observed = ObservedTerm::new(start);
        observed.observe(7, start + Duration::from_secs(1));
        observed.observe(6, start + Duration::from_secs(2));
        assert_eq!(observed.last(), 7);
        let mark = observed.mark();
        assert_eq!(mark.at(start + Duration::from_secs(2)), Some(7));
        assert_eq!(mark.at(start + Duration::from_secs(3)), None);
    }
}
