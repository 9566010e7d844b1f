use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Deadline, LostReason, Step, Told};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A lease of 6 s whose keepalives are due at 2 s, 4 s, … and written off after 1 s.
fn six_seconds(start: Instant) -> Deadline {
    Deadline::granted(6, start, start, 1.0)
}

/// Ticks until there is nothing to do, and gives what was done and until when to wait.
fn run(lease: &mut Deadline, now: Instant) -> (Vec<Step>, Option<Instant>) {
    let mut steps = Vec::new();
    loop {
        match lease.tick(now, 0.0) {
            Step::Wait { until } => return (steps, Some(until)),
            Step::Ended => return (steps, None),
            step => steps.push(step),
        }
        assert!(steps.len() < 5, "endless: {steps:?}");
    }
}

#[test]
fn keepalive_is_sent_after_a_third_of_the_ttl_and_counted_from_its_sending() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    assert_eq!(run(&mut lease, start), (vec![], Some(start + ms(2000))));
    let sent = start + ms(2000);
    assert_eq!(
        run(&mut lease, sent),
        (vec![Step::Send { elsewhere: false }], Some(sent + ms(1000)))
    );
    let told = lease.acked(6, sent, sent + ms(900), 0.0);
    assert_eq!(
        told,
        Some(Told::Renewed {
            deadline: sent + ms(6000)
        })
    );
    assert_eq!(
        run(&mut lease, sent + ms(900)),
        (vec![], Some(sent + ms(2000)))
    );
    assert_eq!(lease.remaining(sent + ms(900)), ms(5100));
}

#[test]
fn leases_granted_together_are_not_kept_alive_together() {
    let start = Instant::now();
    let first = |jitter| match Deadline::granted(6, start, start, jitter).tick(start, 0.0) {
        Step::Wait { until } => until - start,
        other => panic!("{other:?}"),
    };
    assert_eq!((first(0.0), first(1.0)), (ms(1000), ms(2000)));
}

#[test]
fn keepalive_without_an_answer_goes_by_another_member_at_once() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    run(&mut lease, start + ms(2000));
    assert_eq!(
        run(&mut lease, start + ms(2999)),
        (vec![], Some(start + ms(3000)))
    );
    let again = start + ms(3000);
    assert_eq!(
        run(&mut lease, again),
        (vec![Step::Send { elsewhere: true }], Some(start + ms(4000)))
    );
    let told = lease.acked(6, again, again + ms(1), 0.0);
    assert_eq!(
        told,
        Some(Told::Renewed {
            deadline: again + ms(6000)
        })
    );
}

#[test]
fn late_answer_of_a_written_off_keepalive_still_counts() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000] {
        run(&mut lease, start + ms(at));
    }
    let told = lease.acked(6, start + ms(2000), start + ms(3500), 0.0);
    assert_eq!(
        told,
        Some(Told::Renewed {
            deadline: start + ms(8000)
        })
    );
    assert_eq!(
        run(&mut lease, start + ms(3500)).1,
        Some(start + ms(4000)),
        "the other is awaited"
    );
}

#[test]
fn answer_older_than_the_ttl_renews_nothing() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    run(&mut lease, start + ms(2000));
    assert_eq!(
        lease.acked(6, start + ms(2000), start + ms(8000), 0.0),
        None
    );
    assert_eq!(lease.deadline(), start + ms(6000));
}

#[test]
fn short_leases_wait_at_least_300_ms() {
    let start = Instant::now();
    assert_eq!(Deadline::granted(1, start, start, 0.0).patience(), ms(300));
    assert_eq!(
        Deadline::granted(36_000, start, start, 0.0).patience(),
        ms(10_000)
    );
}

#[test]
fn broken_stream_sends_again_at_once_and_then_pauses() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    let now = start + ms(2000);
    run(&mut lease, now);
    lease.unsent(now, 0.0);
    assert_eq!(run(&mut lease, now).0, [Step::Send { elsewhere: true }]);
    lease.unsent(now, 0.0);
    assert_eq!(run(&mut lease, now), (vec![], Some(now + ms(50))));
    lease.unsent(now, 0.0);
    assert_eq!(
        run(&mut lease, now),
        (vec![], Some(now + ms(50))),
        "nothing was in flight"
    );
}

#[test]
fn gone_before_the_deadline_is_revoked_and_after_it_expired() {
    let start = Instant::now();
    for (at, reason) in [(5999, LostReason::Revoked), (6000, LostReason::Expired)] {
        let mut lease = six_seconds(start);
        run(&mut lease, start);
        let told = lease.acked(0, start + ms(2000), start + ms(at), 0.0);
        assert_eq!(told, Some(Told::Lost(reason)));
        assert_eq!(lease.tick(start + ms(at), 0.0), Step::Ended);
        assert_eq!(lease.acked(6, start + ms(2000), start + ms(at), 0.0), None);
    }
}

#[test]
fn deadline_without_an_answer_is_told_once_and_asked_on_until_given_up() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    let (mut now, mut told, mut asked) = (start, Vec::new(), 0);
    loop {
        let (steps, until) = run(&mut lease, now);
        for step in steps {
            match step {
                Step::Send { .. } => asked += u32::from(now >= start + ms(6000)),
                step => told.push((now - start, step)),
            }
        }
        let Some(until) = until else { break };
        assert!(until > now);
        now = until;
    }
    let at_risk = Step::AtRisk {
        deadline: start + ms(6000),
    };
    let lost = Step::Lost(LostReason::NeverConfirmed);
    assert_eq!(told, [(ms(6000), at_risk), (ms(18_000), lost)]);
    assert!((6..=12).contains(&asked), "{asked} in 12 s");
}

#[test]
fn lease_at_risk_that_the_cluster_kept_is_renewed() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000, 4000, 5000, 6000] {
        run(&mut lease, start + ms(at));
    }
    let (steps, _) = run(&mut lease, start + ms(6200));
    assert_eq!(steps, [Step::Send { elsewhere: true }]);
    let told = lease.acked(6, start + ms(6200), start + ms(6210), 0.0);
    assert_eq!(
        told,
        Some(Told::Renewed {
            deadline: start + ms(12_200)
        })
    );
    assert_eq!(
        run(&mut lease, start + ms(6210)),
        (vec![], Some(start + ms(8200)))
    );
}

#[test]
fn who_slept_past_the_end_asks_before_giving_up() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    let awake = start + ms(60_000);
    let at_risk = Step::AtRisk {
        deadline: start + ms(6000),
    };
    assert_eq!(
        run(&mut lease, awake),
        (
            vec![at_risk, Step::Send { elsewhere: false }],
            Some(awake + ms(1000))
        )
    );
    let mut answered = lease.clone();
    assert_eq!(
        answered.acked(0, awake, awake + ms(5), 0.0),
        Some(Told::Lost(LostReason::Expired))
    );
    assert_eq!(
        run(&mut lease, awake + ms(1000)).0,
        [Step::Lost(LostReason::NeverConfirmed)]
    );
}

#[test]
fn give_up_after_nothing_gives_up_at_the_deadline() {
    let start = Instant::now();
    let mut lease = six_seconds(start).give_up_after(Duration::ZERO);
    for at in [0, 2000, 3000, 4000, 5000] {
        run(&mut lease, start + ms(at));
    }
    let (steps, _) = run(&mut lease, start + ms(6000));
    assert_eq!(steps[1..], [Step::Lost(LostReason::NeverConfirmed)]);
}

#[test]
fn huge_times_do_not_overflow() {
    let start = Instant::now();
    let mut lease = Deadline::granted(i64::MAX, start, start, 0.5).give_up_after(Duration::MAX);
    assert!(matches!(lease.tick(start, f64::NAN), Step::Wait { .. }));
}

#[test]
fn it_ends_once() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    assert_eq!(
        lease.end(LostReason::PermissionDenied),
        Some(LostReason::PermissionDenied)
    );
    assert_eq!(lease.end(LostReason::Shutdown), None);
    assert!(lease.is_ended());
}

/// What the network does to one keepalive.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Answered { there: u64, back: u64 },
    Swallowed,
    Broken { after: u64 },
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => (0..200_u64, 0..200_u64).prop_map(|(there, back)| Fate::Answered { there, back }),
        1 => (0..4000_u64, 0..9000_u64).prop_map(|(there, back)| Fate::Answered { there, back }),
        3 => Just(Fate::Swallowed),
        2 => (0..500_u64).prop_map(|after| Fate::Broken { after }),
    ]
}

/// What happens in the test's world, by its time in ms.
#[derive(Debug, Clone, Copy)]
enum Happens {
    Wake,
    Arrives { sent: u64, back: u64 },
    Answer { sent: u64, ttl: i64 },
    Breaks { sent: u64 },
    Revoke,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn lease_is_told_the_truth_whatever_the_network_does(
        ttl in 1..12_u64,
        fates in prop::collection::vec(fate(), 1..60),
        jitters in prop::collection::vec(0.0..1.0_f64, 1..20),
        lateness in prop::collection::vec(prop_oneof![9 => 0..20_u64, 1 => 0..30_000_u64], 1..20),
        revoked in prop::option::of(0..60_000_u64),
        leader_change in prop::option::of(0..60_000_u64),
    ) {
        let start = Instant::now();
        let at = |time: u64| start + ms(time);
        let seconds = i64::try_from(ttl).expect("small");
        let mut lease = Deadline::granted(seconds, start, start, jitters[0]);
        let mut server_until = ttl * 1000;
        let mut world: BTreeMap<(u64, usize), Happens> = BTreeMap::new();
        let mut serial = 0;
        world.insert((0, 0), Happens::Wake);
        if let Some(time) = revoked {
            world.insert((time, usize::MAX), Happens::Revoke);
        }
        let (mut sends, mut in_flight) = (0, None::<u64>);
        let (mut at_risk, mut lost) = (false, None);
        while let Some(((now, _), happens)) = world.pop_first() {
            if now > 120_000 { break }
            let jitter = jitters[serial % jitters.len()];
            // Time that an election gives to every lease.
            if leader_change.is_some_and(|time| time <= now && server_until > time) {
                server_until = server_until.max(leader_change.unwrap_or(0) + ttl * 1000);
            }
            let mut schedule = |time: u64, what| {
                serial += 1;
                world.insert((time, serial), what);
            };
            match happens {
                Happens::Revoke => server_until = server_until.min(now),
                Happens::Arrives { sent, back } => {
                    let alive = server_until > now;
                    if alive {
                        server_until = now + ttl * 1000;
                    }
                    schedule(now + back, Happens::Answer { sent, ttl: if alive { seconds } else { 0 } });
                }
                Happens::Answer { sent, ttl: left } => {
                    let deadline = lease.deadline();
                    match lease.acked(left, at(sent), at(now), jitter) {
                        Some(Told::Renewed { .. }) => {
                            let killed = revoked.is_some_and(|time| time <= now);
                            prop_assert!(server_until > now || killed, "renewed but gone");
                            prop_assert!(lost.is_none());
                            at_risk = false;
                        }
                        Some(Told::Lost(reason)) => {
                            prop_assert!(server_until <= now, "lost but there");
                            prop_assert!(lost.replace(reason).is_none());
                            match reason {
                                LostReason::Expired => prop_assert!(at(now) >= deadline),
                                LostReason::Revoked => prop_assert!(revoked.is_some()),
                                other => prop_assert!(false, "{:?}", other),
                            }
                        }
                        None => {}
                    }
                    if in_flight == Some(sent) { in_flight = None }
                    schedule(now, Happens::Wake);
                }
                Happens::Breaks { sent } => if in_flight == Some(sent) {
                    in_flight = None;
                    lease.unsent(at(now), jitter);
                    schedule(now, Happens::Wake);
                },
                Happens::Wake => for turn in 0.. {
                    prop_assert!(turn < 6, "endless");
                    match lease.tick(at(now), jitter) {
                        Step::Send { .. } => {
                            prop_assert!(lost.is_none(), "kept alive after it was lost");
                            let patience = u64::try_from(lease.patience().as_millis()).expect("small");
                            let free = in_flight.is_none_or(|sent| now >= sent + patience);
                            prop_assert!(free, "two in flight");
                            in_flight = Some(now);
                            match fates[sends % fates.len()] {
                                Fate::Answered { there, back } =>
                                    schedule(now + there, Happens::Arrives { sent: now, back }),
                                Fate::Broken { after } => schedule(now + after, Happens::Breaks { sent: now }),
                                Fate::Swallowed => {}
                            }
                            sends += 1;
                        }
                        Step::AtRisk { deadline } => {
                            prop_assert!(!at_risk && at(now) >= deadline);
                            at_risk = true;
                        }
                        Step::Lost(reason) => {
                            prop_assert_eq!(reason, LostReason::NeverConfirmed);
                            prop_assert!(at_risk && at(now) >= lease.deadline() + lease.ttl() * 2);
                            prop_assert!(lost.replace(reason).is_none());
                        }
                        Step::Wait { until } => {
                            prop_assert!(until > at(now));
                            prop_assert_eq!(at_risk, at(now) >= lease.deadline(), "risk not told in time");
                            let wait = u64::try_from((until - at(now)).as_micros().div_ceil(1000)).expect("small");
                            schedule(now + wait + lateness[sends % lateness.len()], Happens::Wake);
                            break;
                        }
                        Step::Ended => {
                            prop_assert!(lost.is_some());
                            break;
                        }
                    }
                },
            }
        }
    }

    #[test]
    fn answered_lease_is_asked_no_more_than_three_times_a_ttl(
        ttl in 1..30_i64,
        trips in prop::collection::vec(0..150_u64, 1..20),
        jitters in prop::collection::vec(0.0..1.0_f64, 1..20),
    ) {
        let start = Instant::now();
        let mut lease = Deadline::granted(ttl, start, start, jitters[0]);
        let (mut now, mut sends) = (start, Vec::<Instant>::new());
        while sends.len() < 50 {
            let turn = sends.len();
            match lease.tick(now, jitters[turn % jitters.len()]) {
                Step::Send { elsewhere } => {
                    prop_assert!(!elsewhere);
                    sends.push(now);
                    let sent = now;
                    now += ms(trips[turn % trips.len()]);
                    let told = lease.acked(ttl, sent, now, jitters[turn % jitters.len()]);
                    let renewed = matches!(told, Some(Told::Renewed { .. }));
                    prop_assert!(renewed);
                }
                Step::Wait { until } => now = until,
                other => prop_assert!(false, "{:?}", other),
            }
        }
        let third = lease.ttl().div_f64(3.0);
        for pair in sends.windows(2) {
            prop_assert!(pair[1] - pair[0] >= third);
            prop_assert!(pair[1] - pair[0] <= third.mul_f64(1.11));
        }
    }
}
