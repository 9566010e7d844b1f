//! Selects the member that receives a keepalive.
//!
//! The leader is preferred: it renews a lease by itself, while a follower forwards each keepalive to the leader, one
//! after the other. A member whose stream failed or was silent is avoided for a moment: it may be waiting for a failed
//! leader, or be about to leave the ready set.

use std::time::{Duration, Instant};

use crate::connection::{EndpointId, RaftStatus};

/// How long a member is avoided after a failure.
pub(crate) const PENALTY: Duration = Duration::from_secs(2);

/// A ready member.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteCandidate {
    pub(crate) id: EndpointId,
    pub(crate) is_leader: bool,
    /// Time until which the member is avoided.
    pub(crate) penalty: Option<Instant>,
}

/// Returns the index of the best candidate for a lease. `avoid` is the member that did not respond last time.
pub(crate) fn choose(
    candidates: &[RouteCandidate],
    lease: i64,
    avoid: Option<EndpointId>,
    now: Instant,
) -> Option<usize> {
    // Equal candidates share the leases.
    let count = candidates.len();
    let first = usize::try_from(lease.unsigned_abs() % count.max(1) as u64).unwrap_or(0);
    (0..count)
        .map(|step| (first + step) % count)
        .min_by_key(|index| {
            let candidate = &candidates[*index];
            let penalty = candidate.penalty.filter(|until| *until > now);
            (Some(candidate.id) == avoid, penalty, !candidate.is_leader)
        })
}

/// Returns the leader's member id as of the newest status.
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

    fn candidates() -> Vec<RouteCandidate> {
        (0..3)
            .map(|id| RouteCandidate {
                id: EndpointId(id),
                is_leader: id == 1,
                penalty: None,
            })
            .collect()
    }

    #[test]
    fn leader_is_chosen_for_every_lease() {
        let now = Instant::now();
        for lease in [1, 2, 3, i64::MAX, i64::MIN] {
            assert_eq!(choose(&candidates(), lease, None, now), Some(1));
        }
    }

    #[test]
    fn silent_leader_is_avoided() {
        let now = Instant::now();
        let mut members = candidates();
        assert_ne!(choose(&members, 7, Some(EndpointId(1)), now), Some(1));
        members[1].penalty = Some(now + PENALTY);
        assert_ne!(choose(&members, 7, None, now), Some(1));
        assert_eq!(
            choose(&members, 7, None, now + PENALTY),
            Some(1),
            "penalty is over"
        );
    }

    #[test]
    fn oldest_penalty_wins_when_all_are_penalized() {
        let now = Instant::now();
        let mut members = candidates();
        for (index, millis) in [30, 10, 20].into_iter().enumerate() {
            members[index].penalty = Some(now + Duration::from_millis(millis));
        }
        assert_eq!(choose(&members, 7, None, now), Some(1));
        assert_eq!(choose(&members, 7, Some(EndpointId(1)), now), Some(2));
    }

    #[test]
    fn only_member_is_chosen_again() {
        let now = Instant::now();
        let members = &candidates()[..1];
        assert_eq!(choose(members, 7, Some(EndpointId(0)), now), Some(0));
        assert_eq!(choose(&[], 7, None, now), None);
    }

    #[test]
    fn leases_are_spread_without_known_leader() {
        let now = Instant::now();
        let mut members = candidates();
        members[1].is_leader = false;
        let chosen: Vec<_> = (0..3)
            .map(|lease| choose(&members, lease, None, now))
            .collect();
        assert_eq!(chosen, [Some(0), Some(1), Some(2)]);
    }
}
