//! What a probe's answer says of a member. Pure: times are part of what was seen.

use std::time::Duration;

use tokio::time::Instant;

/// A member that lacks what others committed that long ago, and does not move, is cut off from them. Longer than
/// several heartbeats: a follower learns of a commit with the next one.
const STALLED_AFTER: Duration = Duration::from_millis(500);
/// Two looks at a member are compared only when they are that far apart.
const LOOKS_APART: Duration = Duration::from_millis(150);

/// What a member said of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) at: Instant,
    pub(crate) cluster: u64,
    pub(crate) member: u64,
    pub(crate) leader: u64,
    pub(crate) term: u64,
    /// The index up to which the member knows entries to be committed.
    pub(crate) index: u64,
    pub(crate) learner: bool,
}

/// Whether a member can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It answers and is not known to be cut off.
    Fine,
    /// It says itself that it has no leader.
    NoLeader,
    /// It answers, but others have moved on without it.
    CutOff,
    /// It takes no part in the quorum and serves only serializable reads.
    Learner,
    /// It said that it does not serve now (health service).
    NotServing,
    /// It does not answer.
    Unresponsive,
    /// The connection ended.
    Closed,
}

impl Verdict {
    /// Whether requests that need the cluster's consent can be sent to it.
    pub(crate) fn is_fine(self) -> bool {
        self == Self::Fine
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Fine => "it answers",
            Self::NoLeader => "it has no leader",
            Self::CutOff => "it is cut off: other members have moved on without it",
            Self::Learner => "it is a learner and serves serializable reads only",
            Self::NotServing => "it reports that it is not serving now",
            Self::Unresponsive => "it does not answer",
            Self::Closed => "its connection ended",
        }
    }
}

/// The newest known state of a member behind a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) verdict: Verdict,
    pub(crate) sighting: Option<Sighting>,
}

/// Compares a member with the others. `earlier` is an older look at the same member.
pub(crate) fn compare(
    earlier: Option<&Sighting>,
    now: &Sighting,
    others: impl IntoIterator<Item = Sighting>,
) -> Verdict {
    if now.learner {
        return Verdict::Learner;
    }
    if now.leader == 0 {
        return Verdict::NoLeader;
    }
    let stands_still = earlier.is_some_and(|earlier| {
        earlier.at + LOOKS_APART <= now.at && (earlier.term, earlier.index) == (now.term, now.index)
    });
    if !stands_still {
        return Verdict::Fine;
    }
    let behind = others.into_iter().any(|other| {
        other.cluster == now.cluster
            && other.member != now.member
            && other.leader != 0
            && other.at + STALLED_AFTER <= now.at
            && (other.term > now.term || (other.term == now.term && other.index > now.index))
    });
    if behind {
        Verdict::CutOff
    } else {
        Verdict::Fine
    }
}

/// Whether a write that waits since it was sent under `sent_term` can still be answered: a leader that changed in
/// between has lost it silently, and the member answers only after its own time-out.
pub(crate) fn leader_changed(
    sent_term: Option<u64>,
    first_look: Option<&Sighting>,
    now: &Sighting,
) -> bool {
    match (sent_term, first_look) {
        (Some(term), _) => now.leader != 0 && now.term > term,
        (None, Some(first)) => {
            now.leader != 0 && (now.term > first.term || now.leader != first.leader)
        }
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sighting(at: Instant, member: u64, term: u64, index: u64) -> Sighting {
        Sighting {
            at,
            cluster: 1,
            member,
            leader: 1,
            term,
            index,
            learner: false,
        }
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_member_that_stands_still_behind_others_is_cut_off() {
        let start = Instant::now();
        let earlier = sighting(start, 2, 5, 100);
        let now = sighting(start + ms(600), 2, 5, 100);
        let ahead = sighting(start + ms(50), 3, 5, 101);
        assert_eq!(compare(Some(&earlier), &now, [ahead]), Verdict::CutOff);
        let newer_term = sighting(start + ms(50), 3, 6, 90);
        assert_eq!(compare(Some(&earlier), &now, [newer_term]), Verdict::CutOff);
    }

    #[test]
    fn a_follower_that_lags_but_moves_is_fine() {
        let start = Instant::now();
        let earlier = sighting(start, 2, 5, 100);
        let now = sighting(start + ms(600), 2, 5, 101);
        let ahead = sighting(start + ms(50), 3, 5, 500);
        assert_eq!(compare(Some(&earlier), &now, [ahead]), Verdict::Fine);
    }

    #[test]
    fn a_commit_that_a_heartbeat_has_not_carried_yet_says_nothing() {
        let start = Instant::now();
        let earlier = sighting(start, 2, 5, 100);
        let now = sighting(start + ms(300), 2, 5, 100);
        let ahead = sighting(start + ms(50), 3, 5, 101);
        assert_eq!(compare(Some(&earlier), &now, [ahead]), Verdict::Fine);
    }

    #[test]
    fn an_idle_cluster_is_fine() {
        let start = Instant::now();
        let earlier = sighting(start, 2, 5, 100);
        let now = sighting(start + ms(5000), 2, 5, 100);
        let same = sighting(start, 3, 5, 100);
        assert_eq!(compare(Some(&earlier), &now, [same]), Verdict::Fine);
    }

    #[test]
    fn another_cluster_is_no_witness() {
        let start = Instant::now();
        let earlier = sighting(start, 2, 5, 100);
        let now = sighting(start + ms(900), 2, 5, 100);
        let mut stranger = sighting(start, 3, 9, 900);
        stranger.cluster = 2;
        assert_eq!(compare(Some(&earlier), &now, [stranger]), Verdict::Fine);
    }

    #[test]
    fn leader_loss_and_learners_are_told_at_once() {
        let mut now = sighting(Instant::now(), 2, 5, 100);
        now.leader = 0;
        assert_eq!(compare(None, &now, []), Verdict::NoLeader);
        now.learner = true;
        assert_eq!(compare(None, &now, []), Verdict::Learner);
    }

    #[test]
    fn a_write_is_lost_when_the_term_moved_on() {
        let now = Instant::now();
        let seen = sighting(now, 2, 6, 100);
        assert!(leader_changed(Some(5), None, &seen));
        assert!(!leader_changed(Some(6), None, &seen));
        assert!(
            !leader_changed(None, None, &seen),
            "without a baseline nothing is known"
        );
        assert!(leader_changed(None, Some(&sighting(now, 2, 5, 90)), &seen));
        let mut electing = seen;
        electing.leader = 0;
        assert!(
            !leader_changed(Some(5), None, &electing),
            "no new leader yet: the old one may win again"
        );
    }

    proptest! {
        #[test]
        fn the_member_furthest_ahead_is_never_cut_off(
            index in 0u64..1000, term in 1u64..10, others in proptest::collection::vec((1u64..10, 0u64..1000), 0..5),
        ) {
            let start = Instant::now();
            let top = others.iter().copied().max().unwrap_or((0, 0)).max((term, index));
            let earlier = sighting(start, 1, top.0, top.1);
            let now = sighting(start + ms(2000), 1, top.0, top.1);
            let others = others.into_iter().zip(2..).map(|((t, i), m)| sighting(start, m, t, i));
            prop_assert_eq!(compare(Some(&earlier), &now, others), Verdict::Fine);
        }
    }
}
