//! States of a connection and the delay before a reconnect. Time and randomness are arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::ConnectivityState;
use crate::runtime::backoff::Backoff;

/// 50 ms × 1.6 per failure, up to 3 s, ± 20 %.
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(3))
    .factor(1.6)
    .jitter(0.2);
/// Longest reconnect delay while calls wait for a ready member.
const MAX_DELAY_URGENT: Duration = Duration::from_millis(150);
/// Time for which [`ConnectionStateMachine::reconnect_sooner`] shortens the delays.
const URGENT_FOR: Duration = Duration::from_secs(1);
/// A connection that lasted at least this long is replaced without delay.
const STABLE_AFTER: Duration = Duration::from_millis(200);

/// What the actor has to do after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionAction {
    /// Nothing: the event is outdated or changes nothing.
    None,
    /// Connect; the attempt has this generation.
    Dial(u64),
    /// Call [`ConnectionStateMachine::reconnect_due`] after this delay.
    ReconnectAfter(Duration),
    /// Publish the new state of the connection in use.
    Announce,
    /// Close the connection or the attempt, if there is one.
    Close,
}

/// States and their transitions:
///
/// ```text
/// Idle ──▶ Connecting ──▶ Connected ──lost──▶ Backoff ──▶ Connecting
///               └────────────failed─────────────▲
/// any state ──disconnect──▶ Idle        any state ──shut down──▶ ShutDown
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Connecting,
    Connected {
        /// Whether the last probe found the member fine.
        healthy: bool,
        /// Time of the first response; `None` if the next reconnect needs a delay however long this connection lasted.
        established: Option<Instant>,
    },
    /// Waits for the reconnect delay to end.
    Backoff,
    ShutDown,
}

/// The state of one endpoint's connection over all its generations.
#[derive(Debug)]
pub(super) struct ConnectionStateMachine {
    state: State,
    /// Number of the newest attempt. Events of older attempts are ignored.
    generation: u64,
    /// Number of failures since the last stable connection.
    failures: u32,
    urgent_until: Option<Instant>,
}

impl ConnectionStateMachine {
    pub(super) fn new() -> Self {
        Self {
            state: State::Idle,
            generation: 0,
            failures: 0,
            urgent_until: None,
        }
    }

    pub(super) fn connectivity(&self) -> ConnectivityState {
        match self.state {
            State::Idle => ConnectivityState::Idle,
            State::Connecting => ConnectivityState::Connecting,
            State::Connected { healthy: true, .. } => ConnectivityState::Ready,
            State::Connected { healthy: false, .. } => ConnectivityState::NoLeader,
            State::Backoff => ConnectivityState::TransientFailure,
            State::ShutDown => ConnectivityState::Shutdown,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Connects if idle.
    pub(super) fn connect(&mut self) -> ConnectionAction {
        match self.state {
            State::Idle => self.dial(),
            State::Connecting | State::Connected { .. } | State::Backoff | State::ShutDown => {
                ConnectionAction::None
            }
        }
    }

    /// Shortens the reconnect delays for a while. Ends the current delay, unless it was shortened already.
    pub(super) fn reconnect_sooner(&mut self, now: Instant) -> ConnectionAction {
        let was_urgent = self.urgent_until.is_some_and(|until| now <= until);
        self.urgent_until = Some(now + URGENT_FOR);
        match self.state {
            State::Backoff if !was_urgent => self.dial(),
            State::Idle => self.dial(),
            State::Backoff | State::Connecting | State::Connected { .. } | State::ShutDown => {
                ConnectionAction::None
            }
        }
    }

    /// The delay of [`ConnectionAction::ReconnectAfter`] is over.
    pub(super) fn reconnect_due(&mut self) -> ConnectionAction {
        match self.state {
            State::Backoff => self.dial(),
            State::Idle | State::Connecting | State::Connected { .. } | State::ShutDown => {
                ConnectionAction::None
            }
        }
    }

    /// An attempt succeeded: the member responded to an RPC on the new connection.
    pub(super) fn dial_succeeded(
        &mut self,
        generation: u64,
        healthy: bool,
        now: Instant,
    ) -> ConnectionAction {
        if generation != self.generation || self.state != State::Connecting {
            return ConnectionAction::None;
        }
        self.state = State::Connected {
            healthy,
            established: Some(now),
        };
        ConnectionAction::Announce
    }

    /// An attempt failed.
    pub(super) fn dial_failed(
        &mut self,
        generation: u64,
        now: Instant,
        random: f64,
    ) -> ConnectionAction {
        if generation != self.generation || self.state != State::Connecting {
            return ConnectionAction::None;
        }
        self.back_off(now, random)
    }

    /// The connection in use ended or has to be replaced.
    pub(super) fn connection_lost(
        &mut self,
        generation: u64,
        now: Instant,
        random: f64,
    ) -> ConnectionAction {
        let State::Connected { established, .. } = self.state else {
            return ConnectionAction::None;
        };
        if generation != self.generation {
            return ConnectionAction::None;
        }
        if established.is_some_and(|since| now.duration_since(since) >= STABLE_AFTER) {
            self.failures = 0;
            self.state = State::Backoff;
            return ConnectionAction::ReconnectAfter(Duration::ZERO);
        }
        self.back_off(now, random)
    }

    /// Makes the next reconnect wait for a delay, however long the connection in use lasted.
    pub(super) fn require_delay(&mut self) {
        if let State::Connected { established, .. } = &mut self.state {
            *established = None;
        }
    }

    /// A probe or the health service reported the health of the member.
    pub(super) fn health_checked(&mut self, generation: u64, healthy: bool) -> ConnectionAction {
        match &mut self.state {
            State::Connected { healthy: known, .. }
                if generation == self.generation && *known != healthy =>
            {
                *known = healthy;
                ConnectionAction::Announce
            }
            State::Connected { .. }
            | State::Idle
            | State::Connecting
            | State::Backoff
            | State::ShutDown => ConnectionAction::None,
        }
    }

    /// Closes the connection until the next [`ConnectionStateMachine::connect`].
    pub(super) fn disconnect(&mut self) -> ConnectionAction {
        if self.state == State::ShutDown {
            return ConnectionAction::None;
        }
        self.generation += 1;
        self.failures = 0;
        self.state = State::Idle;
        ConnectionAction::Close
    }

    /// Closes the connection permanently.
    pub(super) fn shut_down(&mut self) -> ConnectionAction {
        self.generation += 1;
        self.state = State::ShutDown;
        ConnectionAction::Close
    }

    /// The actor was restarted after a crash: its timers are gone, and the result of an attempt may have been lost.
    pub(super) fn actor_restarted(&mut self) -> ConnectionAction {
        match self.state {
            State::Connecting | State::Backoff => self.dial(),
            State::Connected { .. } => ConnectionAction::Announce,
            State::Idle | State::ShutDown => ConnectionAction::None,
        }
    }

    fn dial(&mut self) -> ConnectionAction {
        self.generation += 1;
        self.state = State::Connecting;
        ConnectionAction::Dial(self.generation)
    }

    fn back_off(&mut self, now: Instant, random: f64) -> ConnectionAction {
        self.state = State::Backoff;
        let urgent = self.urgent_until.is_some_and(|until| now < until);
        let delay = reconnect_delay(self.failures, urgent, random);
        self.failures = self.failures.saturating_add(1);
        ConnectionAction::ReconnectAfter(delay)
    }
}

fn reconnect_delay(failures: u32, urgent: bool, random: f64) -> Duration {
    let backoff = if urgent {
        RECONNECT.max(MAX_DELAY_URGENT)
    } else {
        RECONNECT
    };
    backoff.delay(failures, random)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        assert_eq!(machine.connection_lost(0, now, 0.5), ConnectionAction::None);
        assert_eq!(machine.health_checked(0, false), ConnectionAction::None);
        assert_eq!(machine.dial_failed(0, now, 0.5), ConnectionAction::None);
        assert_eq!(machine.connectivity(), ConnectivityState::Ready);
    }

    #[test]
    fn stable_connection_is_replaced_without_delay() {
        let now = Instant::now();
        let mut machine = ready(now);
        let lost = machine.connection_lost(1, now + Duration::from_secs(5), 0.5);
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
            let lost = machine.connection_lost(machine.generation(), now, 0.5);
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
        let delay = delay_of(machine.connection_lost(1, now + Duration::from_secs(5), 0.5));
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

    proptest! {
        #[test]
        fn delays_are_bounded_and_never_zero(failures in 0u32..1000, urgent: bool, random in 0.0f64..=1.0) {
            let delay = reconnect_delay(failures, urgent, random);
            prop_assert!(delay >= Duration::from_millis(40));
            let longest = if urgent { 150 } else { 3000 };
            prop_assert!(delay <= Duration::from_millis(longest * 12 / 10));
        }
    }
}
