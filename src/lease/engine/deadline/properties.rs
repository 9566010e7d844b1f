//! Simulated keepalives over a faulty network.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Deadline, LeaseLost, ResponseEffect, Step};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Fate of one keepalive on the network.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Responded { there: u64, back: u64 },
    Dropped,
    Broken { after: u64 },
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => (0..200_u64, 0..200_u64).prop_map(|(there, back)| Fate::Responded { there, back }),
        1 => (0..4000_u64, 0..9000_u64).prop_map(|(there, back)| Fate::Responded { there, back }),
        3 => Just(Fate::Dropped),
        2 => (0..500_u64).prop_map(|after| Fate::Broken { after }),
    ]
}

/// An event of the simulation. Times are in ms.
#[derive(Debug, Clone, Copy)]
enum Event {
    TimerFires,
    RequestArrives { sent: u64, back: u64 },
    ResponseArrives { sent: u64, ttl: i64 },
    StreamBreaks { sent: u64 },
    Revoke,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn reports_match_server_state_on_faulty_network(
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
        let mut events: BTreeMap<(u64, usize), Event> = BTreeMap::new();
        let mut serial = 0;
        // Key of the current timer event. Earlier timers are ignored.
        let mut timer = (0, 0);
        events.insert(timer, Event::TimerFires);
        if let Some(time) = revoked {
            events.insert((time, usize::MAX), Event::Revoke);
        }
        let (mut sends, mut in_flight) = (0, None::<u64>);
        let (mut at_risk, mut lost) = (false, None);
        while let Some((key @ (now, _), event)) = events.pop_first() {
            if now > 120_000 { break }
            let jitter = jitters[serial % jitters.len()];
            // A new leader extends every lease.
            if leader_change.is_some_and(|time| time <= now && server_until > time) {
                server_until = server_until.max(leader_change.unwrap_or(0) + ttl * 1000);
            }
            let mut schedule = |time: u64, event| {
                serial += 1;
                events.insert((time, serial), event);
                (time, serial)
            };
            match event {
                Event::Revoke => server_until = server_until.min(now),
                Event::RequestArrives { sent, back } => {
                    let alive = server_until > now;
                    if alive {
                        server_until = now + ttl * 1000;
                    }
                    schedule(now + back, Event::ResponseArrives { sent, ttl: if alive { seconds } else { 0 } });
                }
                Event::ResponseArrives { sent, ttl: new_ttl } => {
                    let deadline = lease.deadline();
                    match lease.handle_response(new_ttl, at(sent), at(now), jitter) {
                        Some(ResponseEffect::Renewed { .. }) => {
                            let was_revoked = revoked.is_some_and(|time| time <= now);
                            prop_assert!(server_until > now || was_revoked, "renewed after its end");
                            prop_assert!(lost.is_none());
                            at_risk = false;
                        }
                        Some(ResponseEffect::Lost(reason)) => {
                            prop_assert!(server_until <= now, "lost although the server has the lease");
                            prop_assert!(lost.replace(reason).is_none());
                            match reason {
                                LeaseLost::Expired => prop_assert!(at(now) >= deadline),
                                LeaseLost::Revoked => prop_assert!(revoked.is_some()),
                                other => prop_assert!(false, "{:?}", other),
                            }
                        }
                        None => {}
                    }
                    if in_flight == Some(sent) { in_flight = None }
                    timer = schedule(now, Event::TimerFires);
                }
                Event::StreamBreaks { sent } => {
                    if in_flight == Some(sent) { in_flight = None }
                    lease.handle_failure(at(sent), at(now), jitter);
                    timer = schedule(now, Event::TimerFires);
                }
                Event::TimerFires if key != timer => {}
                Event::TimerFires => for turn in 0.. {
                    prop_assert!(turn < 6, "endless loop of steps");
                    match lease.next_step(at(now), jitter) {
                        Step::Send { .. } => {
                            prop_assert!(lost.is_none(), "keepalive after the lease was lost");
                            let timeout = u64::try_from(lease.response_timeout().as_millis()).expect("small");
                            let free = in_flight.is_none_or(|sent| now >= sent + timeout);
                            prop_assert!(free, "two keepalives in flight");
                            in_flight = Some(now);
                            match fates[sends % fates.len()] {
                                Fate::Responded { there, back } => {
                                    schedule(now + there, Event::RequestArrives { sent: now, back });
                                }
                                Fate::Broken { after } => {
                                    schedule(now + after, Event::StreamBreaks { sent: now });
                                }
                                Fate::Dropped => {}
                            }
                            sends += 1;
                        }
                        Step::AtRisk { deadline } => {
                            prop_assert!(!at_risk && at(now) >= deadline);
                            at_risk = true;
                        }
                        Step::Lost(reason) => {
                            prop_assert_eq!(reason, LeaseLost::NeverConfirmed);
                            prop_assert!(at_risk && at(now) >= lease.deadline() + lease.ttl() * 2);
                            prop_assert!(lost.replace(reason).is_none());
                        }
                        Step::Wait { until } => {
                            prop_assert!(until > at(now));
                            prop_assert_eq!(at_risk, at(now) >= lease.deadline(), "at risk was not reported in time");
                            let wait = u64::try_from((until - at(now)).as_nanos().div_ceil(1_000_000)).expect("small");
                            timer = schedule(now + wait + lateness[sends % lateness.len()], Event::TimerFires);
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
    fn healthy_lease_sends_three_keepalives_per_ttl(
        ttl in 1..30_i64,
        trips in prop::collection::vec(0..150_u64, 1..20),
        jitters in prop::collection::vec(0.0..1.0_f64, 1..20),
    ) {
        let start = Instant::now();
        let mut lease = Deadline::granted(ttl, start, start, jitters[0]);
        let (mut now, mut sends) = (start, Vec::<Instant>::new());
        while sends.len() < 50 {
            let turn = sends.len();
            match lease.next_step(now, jitters[turn % jitters.len()]) {
                Step::Send { elsewhere } => {
                    prop_assert!(!elsewhere);
                    sends.push(now);
                    let sent = now;
                    now += ms(trips[turn % trips.len()]);
                    let effect = lease.handle_response(ttl, sent, now, jitters[turn % jitters.len()]);
                    let renewed = matches!(effect, Some(ResponseEffect::Renewed { .. }));
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
