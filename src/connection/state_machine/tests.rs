use super::*;

fn ready(now: Instant) -> ConnectionStateMachine {
    let mut machine = ConnectionStateMachine::new();
    assert_eq!(machine.connect(), ConnectionAction::Dial(1));
    assert_eq!(
        machine.dial_succeeded(1, true, now),
        ConnectionAction::Announce
    );
    machine
}

fn delay_of(action: ConnectionAction) -> Duration {
    match action {
        ConnectionAction::ReconnectAfter(delay) => delay,
        other => panic!("expected a reconnect delay, got {other:?}"),
    }
}

#[test]
fn stale_generation_changes_nothing() {
    let now = Instant::now();
    let mut machine = ready(now);
    assert_eq!(
        machine.connection_lost(0, false, now, 0.5),
        ConnectionAction::None
    );
    assert_eq!(machine.health_checked(0, false), ConnectionAction::None);
    assert_eq!(machine.dial_failed(0, now, 0.5), ConnectionAction::None);
    assert_eq!(machine.connectivity(), ConnectivityState::Ready);
}

#[test]
fn stable_connection_is_replaced_without_delay() {
    let now = Instant::now();
    let mut machine = ready(now);
    let lost = machine.connection_lost(1, false, now + Duration::from_secs(5), 0.5);
    assert_eq!(lost, ConnectionAction::ReconnectAfter(Duration::ZERO));
    assert_eq!(machine.reconnect_due(), ConnectionAction::Dial(2));
}

#[test]
fn short_lived_connections_are_replaced_with_growing_delays() {
    let mut now = Instant::now();
    let mut machine = ready(now);
    let mut delays = Vec::new();
    for _ in 0..5 {
        now += Duration::from_millis(1);
        let lost = machine.connection_lost(machine.generation(), false, now, 0.5);
        delays.push(delay_of(lost));
        machine.reconnect_due();
        machine.dial_succeeded(machine.generation(), true, now);
    }
    assert!(
        delays.windows(2).all(|pair| pair[0] < pair[1]),
        "{delays:?}"
    );
    assert!(delays[0] >= Duration::from_millis(40));
}

#[test]
fn required_delay_applies_to_stable_connection() {
    let now = Instant::now();
    let mut machine = ready(now);
    machine.require_delay();
    let delay = delay_of(machine.connection_lost(1, false, now + Duration::from_secs(5), 0.5));
    assert!(delay >= Duration::from_millis(40), "{delay:?}");
}

#[test]
fn waiting_calls_shorten_the_delay() {
    let now = Instant::now();
    let mut machine = ConnectionStateMachine::new();
    machine.connect();
    for _ in 0..20 {
        machine.dial_failed(machine.generation(), now, 0.5);
        machine.reconnect_due();
    }
    let delay = delay_of(machine.dial_failed(machine.generation(), now, 1.0));
    assert!(delay > Duration::from_secs(2));
    assert_eq!(
        machine.reconnect_sooner(now),
        ConnectionAction::Dial(machine.generation())
    );
    let urgent = delay_of(machine.dial_failed(machine.generation(), now, 1.0));
    assert!(urgent <= Duration::from_millis(180));
    assert_eq!(
        machine.reconnect_sooner(now),
        ConnectionAction::None,
        "a short delay is not ended early"
    );
}

#[test]
fn recovered_member_becomes_ready() {
    let now = Instant::now();
    let mut machine = ready(now);
    assert_eq!(machine.health_checked(1, false), ConnectionAction::Announce);
    assert_eq!(machine.connectivity(), ConnectivityState::NoLeader);
    assert_eq!(machine.health_checked(1, false), ConnectionAction::None);
    assert_eq!(machine.health_checked(1, true), ConnectionAction::Announce);
    assert_eq!(machine.connectivity(), ConnectivityState::Ready);
}

#[test]
fn nothing_starts_after_shutdown() {
    let now = Instant::now();
    let mut machine = ready(now);
    assert_eq!(machine.shut_down(), ConnectionAction::Close);
    for action in [
        machine.connect(),
        machine.reconnect_sooner(now),
        machine.reconnect_due(),
        machine.actor_restarted(),
        machine.disconnect(),
    ] {
        assert_eq!(action, ConnectionAction::None);
    }
}

#[test]
fn connection_that_served_is_replaced_without_delay() {
    let now = Instant::now();
    let mut machine = ready(now);
    let lost = machine.connection_lost(1, true, now + Duration::from_millis(1), 0.5);
    assert_eq!(lost, ConnectionAction::ReconnectAfter(Duration::ZERO));
}

fn replacing(now: Instant) -> ConnectionStateMachine {
    let mut machine = ready(now);
    machine.health_checked(1, false);
    let action = machine.want_replacement(now, 0.5);
    assert_eq!(
        action,
        ConnectionAction::ReplaceAfter(Duration::from_millis(100))
    );
    assert_eq!(
        machine.want_replacement(now, 0.5),
        ConnectionAction::None,
        "one replacement at a time"
    );
    assert_eq!(
        machine.replacement_due(),
        ConnectionAction::DialReplacement(2)
    );
    machine
}

#[test]
fn better_replacement_is_used() {
    let now = Instant::now();
    let mut machine = replacing(now);
    assert_eq!(
        machine.generation(),
        1,
        "the old connection stays until then"
    );
    assert_eq!(
        machine.replacement_succeeded(2, now),
        ConnectionAction::Announce
    );
    assert_eq!(machine.generation(), 2);
    assert_eq!(machine.connectivity(), ConnectivityState::Ready);
    assert_eq!(
        machine.connection_lost(1, true, now, 0.5),
        ConnectionAction::None,
        "events of the old connection are ignored"
    );
}

#[test]
fn rejected_replacements_become_rare() {
    let now = Instant::now();
    let mut machine = replacing(now);
    let mut delays = Vec::new();
    for generation in 2..9 {
        match machine.replacement_rejected(generation, now, 0.5) {
            ConnectionAction::ReplaceAfter(delay) => delays.push(delay.as_millis()),
            other => panic!("expected a delay, got {other:?}"),
        }
        machine.replacement_due();
    }
    assert_eq!(delays, [200, 400, 800, 1600, 3200, 5000, 5000]);
    assert_eq!(
        machine.keep_connection(),
        ConnectionAction::CancelReplacement
    );
    assert_eq!(
        machine.want_replacement(now + Duration::from_secs(59), 0.5),
        ConnectionAction::ReplaceAfter(Duration::from_secs(5)),
        "a recovered member does not make replacements frequent again"
    );
    machine.keep_connection();
    assert_eq!(
        machine.want_replacement(now + Duration::from_secs(60), 0.5),
        ConnectionAction::ReplaceAfter(Duration::from_millis(100))
    );
}

#[test]
fn recovered_member_cancels_the_replacement() {
    let now = Instant::now();
    let mut machine = replacing(now);
    assert_eq!(
        machine.keep_connection(),
        ConnectionAction::CancelReplacement
    );
    assert_eq!(
        machine.replacement_succeeded(2, now),
        ConnectionAction::None
    );
    assert_eq!(machine.generation(), 1);
    assert_eq!(machine.keep_connection(), ConnectionAction::None);
}

#[test]
fn lost_connection_waits_for_its_replacement() {
    let now = Instant::now();
    let mut machine = replacing(now);
    assert_eq!(
        machine.connection_lost(1, true, now, 0.5),
        ConnectionAction::Announce
    );
    assert_eq!(machine.connectivity(), ConnectivityState::Connecting);
    assert!(machine.is_connecting(2));
    assert_eq!(
        machine.dial_succeeded(2, true, now),
        ConnectionAction::Announce
    );
}

#[test]
fn restarted_actor_wants_a_replacement_again() {
    let now = Instant::now();
    let mut machine = replacing(now);
    assert_eq!(machine.actor_restarted(), ConnectionAction::Announce);
    assert_eq!(
        machine.want_replacement(now, 0.5),
        ConnectionAction::ReplaceAfter(Duration::from_millis(100))
    );
}

#[test]
fn waiting_calls_shorten_the_delay_of_replacements() {
    let now = Instant::now();
    let mut machine = replacing(now);
    for generation in 2..9 {
        machine.replacement_rejected(generation, now, 0.5);
        machine.replacement_due();
    }
    machine.replacement_rejected(9, now, 0.5);
    assert_eq!(
        machine.reconnect_sooner(now),
        ConnectionAction::DialReplacement(10)
    );
    assert_eq!(
        machine.replacement_rejected(10, now, 0.5),
        ConnectionAction::ReplaceAfter(Duration::from_secs(1))
    );
    assert_eq!(
        machine.reconnect_sooner(now),
        ConnectionAction::None,
        "a short delay is not ended early"
    );
}
