//! Which member a keepalive goes by. Pure.
//!
//! The leader, where it is known: it renews by itself, while a follower asks the leader over a connection of its own,
//! one lease after the other. A member whose stream was silent or broke is left alone for a moment: it may be fine
//! and only wait for a leader that is not, or be about to be taken out of the ready ones.

use std::time::{Duration, Instant};

use crate::connection::{EndpointId, RaftStatus};

/// How long a member is left alone.
pub(crate) const PENALTY: Duration = Duration::from_secs(2);

/// A member that can be asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) id: EndpointId,
    pub(crate) leads: bool,
    /// Left alone until then.
    pub(crate) penalty: Option<Instant>,
}

/// The best member for a lease, as its place in the list. `avoid`: who was asked last and did not answer.
pub(crate) fn choose(
    candidates: &[Candidate],
    lease: i64,
    avoid: Option<EndpointId>,
    now: Instant,
) -> Option<usize> {
    // Where nobody is better than the others, leases are spread.
    let count = candidates.len();
    let first = usize::try_from(lease.unsigned_abs() % count.max(1) as u64).unwrap_or(0);
    (0..count)
        .map(|step| (first + step) % count)
        .min_by_key(|place| {
            let candidate = &candidates[*place];
            let penalty = candidate.penalty.filter(|until| *until > now);
            (Some(candidate.id) == avoid, penalty, !candidate.leads)
        })
}

/// Who leads, by the newest of what the members said.
pub(crate) fn leader(statuses: impl IntoIterator<Item = RaftStatus>) -> Option<u64> {
    statuses
        .into_iter()
        .filter(|status| status.leader != 0)
        .max_by_key(|status| (status.term, status.at))
        .map(|status| status.leader)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates() -> Vec<Candidate> {
        (0..3)
            .map(|id| Candidate {
                id: EndpointId(id),
                leads: id == 1,
                penalty: None,
            })
            .collect()
    }

    #[test]
    fn the_leader_is_asked_whatever_the_lease() {
        let now = Instant::now();
        for lease in [1, 2, 3, i64::MAX, i64::MIN] {
            assert_eq!(choose(&candidates(), lease, None, now), Some(1));
        }
    }

    #[test]
    fn a_silent_leader_is_not_asked_again() {
        let now = Instant::now();
        let mut members = candidates();
        assert_ne!(choose(&members, 7, Some(EndpointId(1)), now), Some(1));
        members[1].penalty = Some(now + PENALTY);
        assert_ne!(choose(&members, 7, None, now), Some(1));
        assert_eq!(choose(&members, 7, None, now + PENALTY), Some(1), "over");
    }

    #[test]
    fn who_was_silent_longest_ago_is_asked_when_all_were() {
        let now = Instant::now();
        let mut members = candidates();
        for (place, wait) in [30, 10, 20].into_iter().enumerate() {
            members[place].penalty = Some(now + Duration::from_millis(wait));
        }
        assert_eq!(choose(&members, 7, None, now), Some(1));
        assert_eq!(choose(&members, 7, Some(EndpointId(1)), now), Some(2));
    }

    #[test]
    fn the_only_member_is_asked_again_and_none_is_not() {
        let now = Instant::now();
        let members = &candidates()[..1];
        assert_eq!(choose(members, 7, Some(EndpointId(0)), now), Some(0));
        assert_eq!(choose(&[], 7, None, now), None);
    }

    #[test]
    fn leases_are_spread_where_no_leader_is_known() {
        let now = Instant::now();
        let mut members = candidates();
        members[1].leads = false;
        let chosen: Vec<_> = (0..3)
            .map(|lease| choose(&members, lease, None, now))
            .collect();
        assert_eq!(chosen, [Some(0), Some(1), Some(2)]);
    }
}
