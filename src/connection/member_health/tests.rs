use proptest::prelude::*;

use super::*;

fn status(at: Instant, member: u64, term: u64, index: u64) -> RaftStatus {
    RaftStatus {
        at,
        requested_at: at,
        cluster: 1,
        member,
        leader: 1,
        term,
        index,
        learner: false,
        revision: 0,
        version: None,
    }
}

fn ready(statuses: impl IntoIterator<Item = RaftStatus>) -> OtherMembers {
    OtherMembers {
        statuses: statuses.into_iter().collect(),
        any_ready: true,
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Evaluates member 2 at these milliseconds, with these positions of its own and of member 3.
fn verdicts(probes: &[(u64, RaftPosition, RaftPosition)]) -> Vec<Verdict> {
    let start = Instant::now();
    let mut tracker = ProgressTracker::default();
    let evaluate = |(at, own, other): &(u64, RaftPosition, RaftPosition)| {
        let at = start + ms(*at);
        tracker.evaluate(
            &status(at, 2, own.0, own.1),
            ready([status(at, 3, other.0, other.1)]),
        )
    };
    probes.iter().map(evaluate).collect()
}

#[test]
fn stalled_member_is_cut_off_until_it_moves() {
    use Verdict::{CutOff, Fine};
    let probes = [
        (0, (5, 100), (5, 100)),
        (200, (5, 100), (5, 101)),
        (400, (5, 100), (5, 150)),
        (600, (5, 100), (5, 200)),
        (750, (5, 100), (5, 250)),
        (950, (5, 100), (5, 250)),
        (1100, (5, 251), (5, 251)),
    ];
    let verdicts = verdicts(&probes);
    assert_eq!(verdicts, [Fine, Fine, Fine, Fine, CutOff, CutOff, Fine]);
}

#[test]
fn thawed_member_without_old_commits_is_cut_off() {
    let start = Instant::now();
    let other = status(start, 3, 5, 200);
    let mut tracker = ProgressTracker::default();
    let thawed = status(start + ms(3000), 2, 5, 100);
    assert_eq!(tracker.evaluate(&thawed, ready([other])), Verdict::CutOff);
    let caught_up = status(start + ms(3100), 2, 5, 201);
    assert_eq!(tracker.evaluate(&caught_up, ready([other])), Verdict::Fine);
}

#[test]
fn returning_member_is_used_after_catching_up() {
    use Verdict::{CutOff, Fine, Returning};
    let start = Instant::now();
    let mut tracker = ProgressTracker::after_outage(start + ms(3000));
    let mut evaluate = |at, index, (others_at, others_index)| {
        let other = status(start + ms(others_at), 3, 5, others_index);
        tracker.evaluate(&status(start + ms(at), 2, 5, index), ready([other]))
    };
    assert_eq!(
        evaluate(3001, 150, (0, 100)),
        Returning,
        "a status from before the outage is no target"
    );
    assert_eq!(evaluate(3100, 190, (3002, 200)), Returning);
    assert_eq!(evaluate(3200, 190, (3150, 250)), Returning);
    assert_eq!(evaluate(3700, 190, (3550, 280)), CutOff, "it has stalled");
    assert_eq!(
        evaluate(3800, 200, (3750, 300)),
        Fine,
        "it reached the target"
    );
    assert_eq!(
        evaluate(3900, 200, (3890, 400)),
        Fine,
        "the target does not move"
    );
}

#[test]
fn returning_member_does_not_wait_without_comparison() {
    use Verdict::{Fine, Returning};
    let start = Instant::now();
    let other = status(start, 3, 5, 100);
    let back_at = start + ms(3000);
    let back = status(back_at, 2, 5, 100);
    let returning = || ProgressTracker::after_outage(back_at);
    assert_eq!(returning().evaluate(&back, OtherMembers::default()), Fine);
    let none_ready = OtherMembers {
        statuses: vec![other],
        any_ready: false,
    };
    assert_eq!(
        returning().evaluate(&back, none_ready),
        Fine,
        "no other member is ready"
    );
    let mut timing_out = returning();
    assert_eq!(timing_out.evaluate(&back, ready([other])), Returning);
    let later = status(back_at + COMPARISON_TIMEOUT, 2, 5, 100);
    assert_eq!(timing_out.evaluate(&later, ready([other])), Fine);
    let mut without_status = returning();
    without_status.status_unavailable();
    assert_eq!(without_status.evaluate(&back, ready([other])), Fine);
}

#[test]
fn member_that_missed_an_election_is_cut_off() {
    let probes = [(0, (5, 100), (6, 90)), (600, (5, 100), (6, 90))];
    assert_eq!(verdicts(&probes)[1], Verdict::CutOff);
}

#[test]
fn lagging_follower_that_moves_is_fine() {
    let probes = [
        (0, (5, 100), (5, 500)),
        (400, (5, 101), (5, 600)),
        (800, (5, 102), (5, 700)),
        (1200, (5, 103), (5, 800)),
    ];
    assert!(verdicts(&probes).iter().all(|verdict| verdict.is_fine()));
}

#[test]
fn commit_before_the_next_heartbeat_is_ignored() {
    let probes = [
        (0, (5, 100), (5, 100)),
        (1000, (5, 100), (5, 101)),
        (1300, (5, 100), (5, 101)),
    ];
    assert!(verdicts(&probes).iter().all(|verdict| verdict.is_fine()));
}

#[test]
fn idle_cluster_is_fine() {
    let probes = [(0, (5, 100), (5, 100)), (60_000, (5, 100), (5, 100))];
    assert!(verdicts(&probes).iter().all(|verdict| verdict.is_fine()));
}

#[test]
fn other_clusters_are_not_compared() {
    let start = Instant::now();
    let mut tracker = ProgressTracker::default();
    let mut foreign = status(start, 3, 9, 900);
    foreign.cluster = 2;
    for at in [0, 900, 1800] {
        let verdict = tracker.evaluate(&status(start + ms(at), 2, 5, 100), ready([foreign]));
        assert_eq!(verdict, Verdict::Fine);
    }
}

#[test]
fn leaderless_members_and_learners_are_recognized_at_once() {
    let mut current = status(Instant::now(), 2, 5, 100);
    current.leader = 0;
    assert_eq!(
        ProgressTracker::default().evaluate(&current, OtherMembers::default()),
        Verdict::NoLeader
    );
    current.learner = true;
    assert_eq!(
        ProgressTracker::default().evaluate(&current, OtherMembers::default()),
        Verdict::Learner
    );
}

proptest! {
    #[test]
    fn most_advanced_member_is_never_cut_off(
        index in 0u64..1000, term in 1u64..10, others in proptest::collection::vec((1u64..10, 0u64..1000), 0..5),
    ) {
        let start = Instant::now();
        let top = others.iter().copied().max().unwrap_or((0, 0)).max((term, index));
        let others: Vec<_> = others.into_iter().zip(2..).map(|((t, i), m)| status(start, m, t, i)).collect();
        let mut tracker = ProgressTracker::default();
        for at in [0, 700, 2000] {
            let own = status(start + ms(at), 1, top.0, top.1);
            prop_assert_eq!(tracker.evaluate(&own, ready(others.clone())), Verdict::Fine);
        }
    }
}

#[test]
fn lagging_member_is_cut_off_at_second_check() {
    let start = Instant::now();
    let mut tracker = ProgressTracker::default();
    let mut other = MemberHealth::new(Verdict::Fine, None);
    let mut verdicts = Vec::new();
    for (at, index) in [(0, 100), (650, 101), (1300, 101)] {
        let at = start + ms(at);
        // The other member responds first in the last check only.
        let response = status(at, 3, 5, index);
        let own = status(at, 2, 5, 100);
        if index == 101 && other.earlier_status.is_some() {
            other = other.updated(Verdict::Fine, Some(response));
            verdicts.push(tracker.evaluate(&own, ready(other.statuses())));
        } else {
            verdicts.push(tracker.evaluate(&own, ready(other.statuses())));
            other = other.updated(Verdict::Fine, Some(response));
        }
    }
    assert_eq!(verdicts, [Verdict::Fine, Verdict::Fine, Verdict::CutOff]);
}

#[test]
fn late_response_does_not_cut_member_off() {
    let start = Instant::now();
    let mut tracker = ProgressTracker::default();
    let mut other = MemberHealth::new(Verdict::Fine, None);
    // The responses of the member are a second late: behind a slow link, a large response, or a suspended process.
    for (requested, index, others_index) in [(0, 100, 100), (700, 100, 101), (1400, 101, 101)] {
        let own = RaftStatus {
            requested_at: start + ms(requested),
            ..status(start + ms(requested + 1000), 2, 5, index)
        };
        let response = status(start + ms(requested), 3, 5, others_index);
        other = other.updated(Verdict::Fine, Some(response));
        let verdict = tracker.evaluate(&own, ready(other.statuses()));
        assert_eq!(verdict, Verdict::Fine, "requested at {requested} ms");
    }
}
