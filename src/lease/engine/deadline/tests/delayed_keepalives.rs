//! Keepalives that waited for a ready member before they were sent.

use std::time::Instant;

use super::{ResponseEffect, Step, ms, run, six_seconds};

#[test]
fn response_timeout_starts_at_delayed_send() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    run(&mut lease, start + ms(2000));
    assert_eq!(
        lease.handle_delayed_send(start + ms(2900)),
        start + ms(3900)
    );
    assert_eq!(
        run(&mut lease, start + ms(3000)),
        (vec![], Some(start + ms(3900)))
    );
    let effect = lease.handle_response(6, start + ms(2900), start + ms(3100), 0.0);
    let deadline = start + ms(8900);
    assert_eq!(effect, Some(ResponseEffect::Renewed { deadline }));
}

#[test]
fn delayed_send_replaces_pending_retry() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000, 4000, 5000] {
        run(&mut lease, start + ms(at));
    }
    let (_, until) = run(&mut lease, start + ms(6000));
    assert_eq!(
        until,
        Some(start + ms(6200)),
        "the lease is at risk and the retry is delayed"
    );
    lease.handle_delayed_send(start + ms(6100));
    assert_eq!(
        run(&mut lease, start + ms(6200)),
        (vec![], Some(start + ms(7100))),
        "one keepalive is in flight"
    );
}

#[test]
fn at_risk_is_reported_on_time_after_delayed_send() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000, 4000, 5000] {
        run(&mut lease, start + ms(at));
    }
    assert_eq!(
        lease.handle_delayed_send(start + ms(5900)),
        start + ms(6000)
    );
    let at_risk = Step::AtRisk {
        deadline: start + ms(6000),
    };
    assert_eq!(
        run(&mut lease, start + ms(6000)),
        (vec![at_risk], Some(start + ms(6900)))
    );
}

#[test]
fn delayed_send_after_suspension_waits_for_response() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    run(&mut lease, start + ms(2000));
    let awake = start + ms(60_000);
    lease.handle_delayed_send(awake);
    let at_risk = Step::AtRisk {
        deadline: start + ms(6000),
    };
    assert_eq!(
        run(&mut lease, awake),
        (vec![at_risk], Some(awake + ms(1000)))
    );
}
