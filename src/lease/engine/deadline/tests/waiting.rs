//! Keepalives that had to wait for a member before they were sent.

use std::time::Instant;

use super::{Step, Told, ms, run, six_seconds};

#[test]
fn keepalive_that_had_to_wait_for_a_member_is_awaited_from_its_sending() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    run(&mut lease, start + ms(2000));
    assert_eq!(lease.sent(start + ms(2900)), start + ms(3900));
    assert_eq!(
        run(&mut lease, start + ms(3000)),
        (vec![], Some(start + ms(3900)))
    );
    let told = lease.acked(6, start + ms(2900), start + ms(3100), 0.0);
    let deadline = start + ms(8900);
    assert_eq!(told, Some(Told::Renewed { deadline }));
}

#[test]
fn keepalive_sent_in_a_pause_is_the_one_in_flight() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000, 4000, 5000] {
        run(&mut lease, start + ms(at));
    }
    let (_, until) = run(&mut lease, start + ms(6000));
    assert_eq!(until, Some(start + ms(6200)), "at risk, and pausing");
    lease.sent(start + ms(6100));
    assert_eq!(
        run(&mut lease, start + ms(6200)),
        (vec![], Some(start + ms(7100))),
        "one in flight"
    );
}

#[test]
fn deadline_is_told_on_time_while_a_keepalive_waits_for_a_member() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    for at in [0, 2000, 3000, 4000, 5000] {
        run(&mut lease, start + ms(at));
    }
    assert_eq!(lease.sent(start + ms(5900)), start + ms(6000));
    let at_risk = Step::AtRisk {
        deadline: start + ms(6000),
    };
    assert_eq!(
        run(&mut lease, start + ms(6000)),
        (vec![at_risk], Some(start + ms(6900)))
    );
}

#[test]
fn who_slept_while_a_keepalive_waited_for_a_member_waits_for_its_answer() {
    let start = Instant::now();
    let mut lease = six_seconds(start);
    run(&mut lease, start);
    run(&mut lease, start + ms(2000));
    let awake = start + ms(60_000);
    lease.sent(awake);
    let at_risk = Step::AtRisk {
        deadline: start + ms(6000),
    };
    assert_eq!(
        run(&mut lease, awake),
        (vec![at_risk], Some(awake + ms(1000)))
    );
}
