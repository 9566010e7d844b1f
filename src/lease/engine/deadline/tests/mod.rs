mod delayed_keepalives;

use std::time::{Duration, Instant};

use super::{Deadline, LeaseLost, ResponseEffect, Step};

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A lease of 6 s whose keepalives are due at 2 s, 4 s, … and time out after 1 s.
pub(super) fn six_seconds(start: Instant) -> Deadline {
    Deadline::granted(6, start, start, 1.0)
}

/// Takes every step that is due. Returns the steps and the end of the wait.
pub(super) fn run(lease: &mut Deadline, now: Instant) -> (Vec<Step>, Option<Instant>) {
    let mut steps = Vec::new();
    loop {
        match lease.next_step(now, 0.0) {
            Step::Wait { until } => return (steps, Some(until)),
            Step::Ended => return (steps, None),
            step => steps.push(step),
        }
        assert!(steps.len() < 5, "endless loop of steps: {steps:?}");
    }
}

#[test]
fn keepalive_is_sent_after_a_third_of_ttl() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    assert_eq!(run(&mut lease, start), (vec![], Some(start + ms(2000))));
    let sent = start + ms(2000);
    assert_eq!(
        run(&mut lease, sent),
        (vec![Step::Send { elsewhere: false }], Some(sent + ms(1000)))
    );
    let effect = lease.handle_response(6, sent, sent + ms(900), 0.0);
    assert_eq!(
        effect,
        Some(ResponseEffect::Renewed {
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
fn first_keepalives_are_spread() {
    let start = Instant::now();
    let first = |jitter| match Deadline::granted(6, start, start, jitter).next_step(start, 0.0) {
        Step::Wait { until } => until - start,
        other => panic!("{other:?}"),
    };
    assert_eq!((first(0.0), first(1.0)), (ms(1000), ms(2000)));
}

#[test]
fn timed_out_keepalive_goes_elsewhere_at_once() {
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
    let effect = lease.handle_response(6, again, again + ms(1), 0.0);
    assert_eq!(
        effect,
        Some(ResponseEffect::Renewed {
            deadline: again + ms(6000)
        })
    );
}

#[test]
fn late_response_to_timed_out_keepalive_renews() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000] {
        run(&mut lease, start + ms(at));
    }
    let effect = lease.handle_response(6, start + ms(2000), start + ms(3500), 0.0);
    assert_eq!(
        effect,
        Some(ResponseEffect::Renewed {
            deadline: start + ms(8000)
        })
    );
    assert_eq!(
        run(&mut lease, start + ms(3500)).1,
        Some(start + ms(4000)),
        "the second keepalive is in flight"
    );
}

#[test]
fn overtaken_response_changes_nothing() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000] {
        run(&mut lease, start + ms(at));
    }
    assert!(
        lease
            .handle_response(6, start + ms(3000), start + ms(3010), 0.0)
            .is_some()
    );
    assert_eq!(
        lease.handle_response(6, start + ms(2000), start + ms(3020), 0.0),
        None
    );
    assert_eq!(lease.deadline(), start + ms(9000));
    assert_eq!(
        run(&mut lease, start + ms(3020)),
        (vec![], Some(start + ms(5000)))
    );
    run(&mut lease, start + ms(5000));
    assert_eq!(
        lease.handle_response(6, start + ms(2000), start + ms(5010), 0.0),
        None
    );
    assert_eq!(
        run(&mut lease, start + ms(5010)),
        (vec![], Some(start + ms(6000))),
        "the keepalive is still in flight"
    );
}

#[test]
fn shorter_ttl_does_not_shorten_deadline() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    run(&mut lease, start + ms(2000));
    assert!(
        lease
            .handle_response(2, start + ms(2000), start + ms(2010), 0.0)
            .is_some()
    );
    assert_eq!(lease.deadline(), start + ms(6000));
}

#[test]
fn response_older_than_ttl_renews_nothing() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    run(&mut lease, start + ms(2000));
    assert_eq!(
        lease.handle_response(6, start + ms(2000), start + ms(8000), 0.0),
        None
    );
    assert_eq!(lease.deadline(), start + ms(6000));
}

#[test]
fn response_timeout_has_minimum_and_maximum() {
    let start = Instant::now();
    assert_eq!(
        Deadline::granted(1, start, start, 0.0).response_timeout(),
        ms(300)
    );
    assert_eq!(
        Deadline::granted(36_000, start, start, 0.0).response_timeout(),
        ms(10_000)
    );
}

#[test]
fn first_failure_retries_at_once_then_backs_off() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    let now = start + ms(2000);
    run(&mut lease, now);
    lease.handle_failure(now, now, 0.0);
    assert_eq!(run(&mut lease, now).0, [Step::Send { elsewhere: true }]);
    lease.handle_failure(now, now, 0.0);
    assert_eq!(run(&mut lease, now), (vec![], Some(now + ms(50))));
    lease.handle_failure(now, now, 0.0);
    assert_eq!(
        run(&mut lease, now),
        (vec![], Some(now + ms(50))),
        "nothing was in flight"
    );
}

#[test]
fn failure_of_older_keepalive_is_ignored() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000] {
        run(&mut lease, start + ms(at));
    }
    lease.handle_failure(start + ms(2000), start + ms(3001), 0.0);
    assert_eq!(
        run(&mut lease, start + ms(3001)),
        (vec![], Some(start + ms(4000)))
    );
}

#[test]
fn lease_gone_before_deadline_was_revoked() {
    let start = Instant::now();
    for (at, reason) in [(5999, LeaseLost::Revoked), (6000, LeaseLost::Expired)] {
        let mut lease = six_seconds(start);
        run(&mut lease, start);
        let effect = lease.handle_response(0, start + ms(2000), start + ms(at), 0.0);
        assert_eq!(effect, Some(ResponseEffect::Lost(reason)));
        assert_eq!(lease.next_step(start + ms(at), 0.0), Step::Ended);
        assert_eq!(
            lease.handle_response(6, start + ms(2000), start + ms(at), 0.0),
            None
        );
    }
}

#[test]
fn at_risk_is_reported_once_until_give_up() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    let (mut now, mut reports, mut sends_at_risk) = (start, Vec::new(), 0);
    loop {
        let (steps, until) = run(&mut lease, now);
        for step in steps {
            match step {
                Step::Send { .. } => sends_at_risk += u32::from(now >= start + ms(6000)),
                step => reports.push((now - start, step)),
            }
        }
        let Some(until) = until else { break };
        assert!(until > now);
        now = until;
    }
    let at_risk = Step::AtRisk {
        deadline: start + ms(6000),
    };
    let lost = Step::Lost(LeaseLost::NeverConfirmed);
    assert_eq!(reports, [(ms(6000), at_risk), (ms(18_000), lost)]);
    assert!(
        (6..=12).contains(&sends_at_risk),
        "{sends_at_risk} keepalives in 12 s"
    );
}

#[test]
fn at_risk_is_reported_on_time_while_in_flight() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    run(&mut lease, start + ms(2000));
    lease.handle_failure(start + ms(2000), start + ms(2300), 0.0);
    for at in [2300, 3300, 4300] {
        run(&mut lease, start + ms(at));
    }
    assert_eq!(run(&mut lease, start + ms(5300)).1, Some(start + ms(6000)));
    let at_risk = Step::AtRisk {
        deadline: start + ms(6000),
    };
    assert_eq!(
        run(&mut lease, start + ms(6000)),
        (vec![at_risk], Some(start + ms(6300)))
    );
}

#[test]
fn lease_at_risk_is_renewed_by_response() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000, 4000, 5000, 6000] {
        run(&mut lease, start + ms(at));
    }
    let (steps, _) = run(&mut lease, start + ms(6200));
    assert_eq!(steps, [Step::Send { elsewhere: true }]);
    let effect = lease.handle_response(6, start + ms(6200), start + ms(6210), 0.0);
    assert_eq!(
        effect,
        Some(ResponseEffect::Renewed {
            deadline: start + ms(12_200)
        })
    );
    assert_eq!(
        run(&mut lease, start + ms(6210)),
        (vec![], Some(start + ms(8200)))
    );
}

#[test]
fn suspended_process_sends_before_giving_up() {
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
    let mut expired = lease.clone();
    assert_eq!(
        expired.handle_response(0, awake, awake + ms(5), 0.0),
        Some(ResponseEffect::Lost(LeaseLost::Expired))
    );
    assert_eq!(
        run(&mut lease, awake + ms(1000)).0,
        [Step::Lost(LeaseLost::NeverConfirmed)]
    );
}

#[test]
fn zero_give_up_after_gives_up_at_deadline() {
    let start = Instant::now();
    let mut lease = six_seconds(start).give_up_after(Duration::ZERO);
    for at in [0, 2000, 3000, 4000, 5000] {
        run(&mut lease, start + ms(at));
    }
    let (steps, _) = run(&mut lease, start + ms(6000));
    assert_eq!(steps[1..], [Step::Lost(LeaseLost::NeverConfirmed)]);
}

#[test]
fn huge_durations_do_not_overflow() {
    let start = Instant::now();
    let mut lease = Deadline::granted(i64::MAX, start, start, 0.5).give_up_after(Duration::MAX);
    assert!(matches!(
        lease.next_step(start, f64::NAN),
        Step::Wait { .. }
    ));
}

#[test]
fn lease_ends_once() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    assert_eq!(
        lease.end(LeaseLost::PermissionDenied),
        Some(LeaseLost::PermissionDenied)
    );
    assert_eq!(lease.end(LeaseLost::Shutdown), None);
    assert!(lease.is_ended());
}
