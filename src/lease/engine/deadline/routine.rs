//! What is done routinely is what the long way would have done.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Deadline, Step, Told};

#[derive(Debug, Clone, Copy)]
enum Happens {
    Woken,
    /// An answer with this TTL to the keepalive sent last, or to the one before.
    Answered {
        ttl: i64,
        before: bool,
    },
    Broken,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => Just(Happens::Woken),
        4 => (0..8_i64, prop::bool::weighted(0.2))
            .prop_map(|(ttl, before)| Happens::Answered { ttl, before }),
        1 => Just(Happens::Broken),
    ]
}

/// Goes the long way to the next wait; what there was to do on it.
fn settle(lease: &mut Deadline, now: Instant) -> Vec<Step> {
    let mut steps = Vec::new();
    loop {
        match lease.tick(now, 0.5) {
            step @ (Step::Wait { .. } | Step::Ended) => {
                steps.push(step);
                return steps;
            }
            step => steps.push(step),
        }
    }
}

proptest! {
    #[test]
    fn routine_is_what_the_long_way_would_have_done(
        ttl in 1..8_i64,
        story in prop::collection::vec((prop_oneof![5 => 0..900_u64, 1 => 0..9_000_u64], happens()), 1..80),
    ) {
        let mut now = Instant::now();
        let mut lease = Deadline::granted(ttl, now, now, 0.5);
        let mut sent = vec![now, now];
        settle(&mut lease, now);
        for (later, happened) in story {
            now += Duration::from_millis(later);
            let mut long = lease.clone();
            match happened {
                Happens::Woken => {
                    let routine = lease.send_routinely(now);
                    let steps = settle(&mut long, now);
                    if routine {
                        prop_assert_eq!(steps[0], Step::Send { elsewhere: false });
                        prop_assert_eq!(&lease, &long);
                    }
                    if steps.iter().any(|step| matches!(step, Step::Send { .. })) {
                        sent.push(now);
                    }
                }
                Happens::Answered { ttl, before } => {
                    let sent_at = sent[sent.len() - 1 - usize::from(before)];
                    let next = lease.renew_routinely(ttl, sent_at, now, 0.5);
                    let told = long.acked(ttl, sent_at, now, 0.5);
                    let steps = settle(&mut long, now);
                    if steps.iter().any(|step| matches!(step, Step::Send { .. })) {
                        sent.push(now);
                    }
                    if let Some(until) = next {
                        let deadline = lease.deadline();
                        prop_assert_eq!(told, Some(Told::Renewed { deadline }));
                        prop_assert_eq!(steps, [Step::Wait { until }]);
                        prop_assert_eq!(&lease, &long);
                    }
                }
                Happens::Broken => {
                    long.unsent(sent[sent.len() - 1], now, 0.5);
                    if settle(&mut long, now).iter().any(|step| matches!(step, Step::Send { .. })) {
                        sent.push(now);
                    }
                }
            }
            lease = long;
        }
    }
}

#[test]
fn a_lease_that_is_well_is_renewed_routinely_for_ever() {
    let mut now = Instant::now();
    let mut lease = Deadline::granted(3, now, now, 0.5);
    let Step::Wait { until } = lease.tick(now, 0.5) else {
        panic!("it is due at once");
    };
    now = until;
    for _ in 0..100 {
        assert!(lease.send_routinely(now));
        assert!(!lease.send_routinely(now), "one in flight");
        let sent_at = now;
        now += Duration::from_millis(400);
        now = lease
            .renew_routinely(3, sent_at, now, 0.5)
            .expect("all is well");
    }
}
