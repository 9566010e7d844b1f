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

fn seen(sightings: impl IntoIterator<Item = Sighting>) -> Others {
    Others {
        sightings: sightings.into_iter().collect(),
        serve: true,
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Looks at member 2 at these times, with these reaches, while member 3 shows something else each time.
fn looks(start: Instant, looks: &[(u64, Reach, Reach)]) -> Vec<Verdict> {
    let mut progress = Progress::default();
    let look = |(at, own, other): &(u64, Reach, Reach)| {
        let at = start + ms(*at);
        progress.look(
            &sighting(at, 2, own.0, own.1),
            seen([sighting(at, 3, other.0, other.1)]),
        )
    };
    looks.iter().map(look).collect()
}

#[test]
fn a_member_that_stands_still_behind_others_is_cut_off_until_it_moves() {
    use Verdict::{CutOff, Fine};
    // The others are looked at again and again, and keep moving.
    let seen = [
        (0, (5, 100), (5, 100)),
        (200, (5, 100), (5, 101)),
        (400, (5, 100), (5, 150)),
        (600, (5, 100), (5, 200)),
        (750, (5, 100), (5, 250)),
        (950, (5, 100), (5, 250)),
        (1100, (5, 251), (5, 251)),
    ];
    let verdicts = looks(Instant::now(), &seen);
    assert_eq!(verdicts, [Fine, Fine, Fine, Fine, CutOff, CutOff, Fine]);
}

#[test]
fn a_member_that_comes_back_without_what_others_had_long_ago_is_not_used_yet() {
    let start = Instant::now();
    let other = sighting(start, 3, 5, 200);
    let mut progress = Progress::default();
    let thawed = sighting(start + ms(3000), 2, 5, 100);
    assert_eq!(progress.look(&thawed, seen([other])), Verdict::CutOff);
    let caught_up = sighting(start + ms(3100), 2, 5, 201);
    assert_eq!(progress.look(&caught_up, seen([other])), Verdict::Fine);
}

#[test]
fn a_member_that_was_away_is_used_when_it_has_what_others_have_since_it_is_back() {
    use Verdict::{CutOff, Fine, Returning};
    let start = Instant::now();
    let mut progress = Progress::returning(start + ms(3000));
    let mut look = |at, index, (others_at, others_index)| {
        let other = sighting(start + ms(others_at), 3, 5, others_index);
        progress.look(&sighting(start + ms(at), 2, 5, index), seen([other]))
    };
    let stale = look(3001, 150, (0, 100));
    assert_eq!(
        stale, Returning,
        "what others had when it left says nothing"
    );
    assert_eq!(look(3100, 190, (3002, 200)), Returning);
    assert_eq!(look(3200, 190, (3150, 250)), Returning);
    assert_eq!(look(3700, 190, (3550, 280)), CutOff, "it stands still");
    assert_eq!(look(3800, 200, (3750, 300)), Fine, "it moves");
    assert_eq!(
        look(3900, 200, (3890, 400)),
        Fine,
        "and is known to be back"
    );
}

#[test]
fn a_member_that_was_away_does_not_wait_for_witnesses_that_do_not_come() {
    use Verdict::{Fine, Returning};
    let start = Instant::now();
    let other = sighting(start, 3, 5, 100);
    let back = start + ms(3000);
    let now = sighting(back, 2, 5, 100);
    let returning = || Progress::returning(back);
    assert_eq!(returning().look(&now, Others::default()), Fine);
    let idle = Others {
        sightings: vec![other],
        serve: false,
    };
    assert_eq!(returning().look(&now, idle), Fine, "nobody else serves");
    let mut unheard = returning();
    assert_eq!(unheard.look(&now, seen([other])), Returning);
    let later = sighting(back + WITNESS_PATIENCE, 2, 5, 100);
    assert_eq!(unheard.look(&later, seen([other])), Fine);
    let mut untold = returning();
    untold.untold();
    assert_eq!(untold.look(&now, seen([other])), Fine);
}

#[test]
fn a_member_that_missed_an_election_is_cut_off() {
    let seen = [(0, (5, 100), (6, 90)), (600, (5, 100), (6, 90))];
    assert_eq!(looks(Instant::now(), &seen)[1], Verdict::CutOff);
}

#[test]
fn a_follower_that_lags_but_moves_is_fine() {
    let seen = [
        (0, (5, 100), (5, 500)),
        (400, (5, 101), (5, 600)),
        (800, (5, 102), (5, 700)),
        (1200, (5, 103), (5, 800)),
    ];
    assert!(
        looks(Instant::now(), &seen)
            .iter()
            .all(|verdict| verdict.is_fine())
    );
}

#[test]
fn a_commit_that_a_heartbeat_has_not_carried_yet_says_nothing() {
    let seen = [
        (0, (5, 100), (5, 100)),
        (1000, (5, 100), (5, 101)),
        (1300, (5, 100), (5, 101)),
    ];
    assert!(
        looks(Instant::now(), &seen)
            .iter()
            .all(|verdict| verdict.is_fine())
    );
}

#[test]
fn an_idle_cluster_is_fine() {
    let seen = [(0, (5, 100), (5, 100)), (60_000, (5, 100), (5, 100))];
    assert!(
        looks(Instant::now(), &seen)
            .iter()
            .all(|verdict| verdict.is_fine())
    );
}

#[test]
fn another_cluster_is_no_witness() {
    let start = Instant::now();
    let mut progress = Progress::default();
    let mut stranger = sighting(start, 3, 9, 900);
    stranger.cluster = 2;
    for at in [0, 900, 1800] {
        let verdict = progress.look(&sighting(start + ms(at), 2, 5, 100), seen([stranger]));
        assert_eq!(verdict, Verdict::Fine);
    }
}

#[test]
fn leader_loss_and_learners_are_told_at_once() {
    let mut now = sighting(Instant::now(), 2, 5, 100);
    now.leader = 0;
    assert_eq!(
        Progress::default().look(&now, Others::default()),
        Verdict::NoLeader
    );
    now.learner = true;
    assert_eq!(
        Progress::default().look(&now, Others::default()),
        Verdict::Learner
    );
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
        let others: Vec<_> = others.into_iter().zip(2..).map(|((t, i), m)| sighting(start, m, t, i)).collect();
        let mut progress = Progress::default();
        for at in [0, 700, 2000] {
            let verdict = progress.look(&sighting(start + ms(at), 1, top.0, top.1), seen(others.clone()));
            prop_assert_eq!(verdict, Verdict::Fine);
        }
    }
}
