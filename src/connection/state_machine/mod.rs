//! States of a connection. Time and randomness are arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    ConnectivityState,
    reconnect_delay::{reconnect_delay, replacement_delay},
};

/// Time for which [`ConnectionStateMachine::reconnect_sooner`] shortens the delays.
const URGENT_FOR: Duration = Duration::from_secs(1);
/// A connection that lasted at least this long is replaced without delay.
const STABLE_AFTER: Duration = Duration::from_millis(200);
/// Time after which replacements that were not better are forgotten. Until then, an endpoint that leads to one member
/// only is dialled rarely, however often that member loses its leader.
const FORGET_REPLACEMENTS_AFTER: Duration = Duration::from_secs(60);

/// What the actor has to do after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionAction {
    /// Nothing: the event is outdated or changes nothing.
    None,
    /// Connect; the attempt has this generation.
    Dial(u64),
    /// Connect in addition to the connection in use; the attempt has this generation.
    DialReplacement(u64),
    /// Call [`ConnectionStateMachine::reconnect_due`] after this delay.
    ReconnectAfter(Duration),
    /// Call [`ConnectionStateMachine::replacement_due`] after this delay.
    ReplaceAfter(Duration),
    /// End the attempt to replace the connection in use.
    CancelReplacement,
    /// Publish the new state of the connection in use.
    Announce,
    /// Close the connection or the attempt, if there is one.
    Close,
}

/// States and their transitions:
///
/// ```text
/// Idle ──▶ Connecting ──▶ Connected ──lost──▶ Backoff ──▶ Connecting
///               │              └──lost, replacement in progress──▶ Connecting
///               └────────────failed─────────────▲
/// any state ──disconnect──▶ Idle        any state ──shut down──▶ ShutDown
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// The newest attempt is in progress.
    Connecting,
    Connected {
        generation: u64,
        /// Whether the last probe found the member fine.
        healthy: bool,
        /// Time of the first response; `None` if the next reconnect needs a delay however long this connection lasted.
        established: Option<Instant>,
        replacement: Replacement,
    },
    /// Waits for the reconnect delay to end.
    Backoff,
    ShutDown,
}

/// A second connection to the endpoint, which takes the place of the connection in use if it leads to a better member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replacement {
    NotWanted,
    /// Waits for the delay to end.
    Waiting,
    /// The newest attempt is in progress.
    Dialing,
}

/// The state of one endpoint's connection over all its generations.
#[derive(Debug)]
pub(super) struct ConnectionStateMachine {
    state: State,
    /// Number of the newest attempt. Events of other attempts are ignored, unless their connection is in use.
    newest: u64,
    /// Number of failures since the last stable connection.
    failures: u32,
    urgent_until: Option<Instant>,
    /// Number of replacements that were not better.
    rejected_replacements: u32,
    /// Time of the last replacement that was not better.
    last_rejected: Option<Instant>,
}

impl ConnectionStateMachine {
    pub(super) fn new() -> Self {
        Self {
            state: State::Idle,
            newest: 0,
            failures: 0,
            urgent_until: None,
            rejected_replacements: 0,
            last_rejected: None,
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

    /// Returns the generation of the connection in use, or of the newest attempt if there is none.
    pub(super) fn generation(&self) -> u64 {
        match self.state {
            State::Connected { generation, .. } => generation,
            State::Idle | State::Connecting | State::Backoff | State::ShutDown => self.newest,
        }
    }

    /// Returns whether this generation is an attempt in progress to connect an endpoint without a connection.
    pub(super) fn is_connecting(&self, generation: u64) -> bool {
        self.state == State::Connecting && generation == self.newest
    }

    /// Returns whether this generation is an attempt in progress to replace the connection in use.
    pub(super) fn is_replacing(&self, generation: u64) -> bool {
        self.replacement() == Some(Replacement::Dialing) && generation == self.newest
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

    /// Shortens the delays of reconnects and replacements for a while. Ends the current delay, unless it was shortened
    /// already.
    pub(super) fn reconnect_sooner(&mut self, now: Instant) -> ConnectionAction {
        let was_urgent = self.urgent_until.is_some_and(|until| now <= until);
        self.urgent_until = Some(now + URGENT_FOR);
        match self.state {
            State::Backoff if !was_urgent => self.dial(),
            State::Connected {
                replacement: Replacement::Waiting,
                ..
            } if !was_urgent => self.replacement_due(),
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
        if !self.is_connecting(generation) {
            return ConnectionAction::None;
        }
        self.use_connection(generation, healthy, now)
    }

    /// An attempt failed.
    pub(super) fn dial_failed(
        &mut self,
        generation: u64,
        now: Instant,
        random: f64,
    ) -> ConnectionAction {
        if !self.is_connecting(generation) {
            return ConnectionAction::None;
        }
        self.back_off(now, random)
    }

    /// The connection in use ended or has to be replaced. `has_served` is whether it carried a response to a request
    /// of the application.
    pub(super) fn connection_lost(
        &mut self,
        generation: u64,
        has_served: bool,
        now: Instant,
        random: f64,
    ) -> ConnectionAction {
        let State::Connected {
            generation: in_use,
            established,
            replacement,
            ..
        } = self.state
        else {
            return ConnectionAction::None;
        };
        if generation != in_use {
            return ConnectionAction::None;
        }
        if replacement == Replacement::Dialing {
            self.state = State::Connecting;
            return ConnectionAction::Announce;
        }
        let lasted = established.map(|since| now.duration_since(since));
        if lasted.is_some_and(|lasted| has_served || lasted >= STABLE_AFTER) {
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
            State::Connected {
                generation: in_use,
                healthy: known,
                ..
            } if generation == *in_use && *known != healthy => {
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

    /// The connection in use leads to a member that cannot be used, or that is suspected.
    pub(super) fn want_replacement(&mut self, now: Instant, random: f64) -> ConnectionAction {
        if self.replacement() != Some(Replacement::NotWanted) {
            return ConnectionAction::None;
        }
        let forgotten = |last| now.duration_since(last) >= FORGET_REPLACEMENTS_AFTER;
        if self.last_rejected.is_some_and(forgotten) {
            self.rejected_replacements = 0;
        }
        self.wait_for_replacement(now, random)
    }

    /// The delay of [`ConnectionAction::ReplaceAfter`] is over.
    pub(super) fn replacement_due(&mut self) -> ConnectionAction {
        if self.replacement() != Some(Replacement::Waiting) {
            return ConnectionAction::None;
        }
        self.newest += 1;
        self.set_replacement(Replacement::Dialing);
        ConnectionAction::DialReplacement(self.newest)
    }

    /// A replacement failed, or leads to a member that is not better.
    pub(super) fn replacement_rejected(
        &mut self,
        generation: u64,
        now: Instant,
        random: f64,
    ) -> ConnectionAction {
        if !self.is_replacing(generation) {
            return ConnectionAction::None;
        }
        self.rejected_replacements = self.rejected_replacements.saturating_add(1);
        self.last_rejected = Some(now);
        self.wait_for_replacement(now, random)
    }

    /// A replacement leads to a member that can be used.
    pub(super) fn replacement_succeeded(
        &mut self,
        generation: u64,
        now: Instant,
    ) -> ConnectionAction {
        if !self.is_replacing(generation) {
            return ConnectionAction::None;
        }
        self.rejected_replacements = 0;
        self.use_connection(generation, true, now)
    }

    /// The member of the connection in use can be used and is not suspected.
    pub(super) fn keep_connection(&mut self) -> ConnectionAction {
        match self.replacement() {
            Some(Replacement::Waiting | Replacement::Dialing) => {
                self.set_replacement(Replacement::NotWanted);
                ConnectionAction::CancelReplacement
            }
            Some(Replacement::NotWanted) | None => ConnectionAction::None,
        }
    }

    /// Closes the connection until the next [`ConnectionStateMachine::connect`].
    pub(super) fn disconnect(&mut self) -> ConnectionAction {
        if self.state == State::ShutDown {
            return ConnectionAction::None;
        }
        self.newest += 1;
        self.failures = 0;
        self.state = State::Idle;
        ConnectionAction::Close
    }

    /// Closes the connection permanently.
    pub(super) fn shut_down(&mut self) -> ConnectionAction {
        self.newest += 1;
        self.state = State::ShutDown;
        ConnectionAction::Close
    }

    /// The actor was restarted after a crash: its timers are gone, and the result of an attempt may have been lost.
    pub(super) fn actor_restarted(&mut self) -> ConnectionAction {
        match self.state {
            State::Connecting | State::Backoff => self.dial(),
            State::Connected { .. } => {
                self.set_replacement(Replacement::NotWanted);
                ConnectionAction::Announce
            }
            State::Idle | State::ShutDown => ConnectionAction::None,
        }
    }

    fn dial(&mut self) -> ConnectionAction {
        self.newest += 1;
        self.state = State::Connecting;
        ConnectionAction::Dial(self.newest)
    }

    fn use_connection(&mut self, generation: u64, healthy: bool, now: Instant) -> ConnectionAction {
        self.state = State::Connected {
            generation,
            healthy,
            established: Some(now),
            replacement: Replacement::NotWanted,
        };
        ConnectionAction::Announce
    }

    fn back_off(&mut self, now: Instant, random: f64) -> ConnectionAction {
        self.state = State::Backoff;
        let delay = reconnect_delay(self.failures, self.is_urgent(now), random);
        self.failures = self.failures.saturating_add(1);
        ConnectionAction::ReconnectAfter(delay)
    }

    fn wait_for_replacement(&mut self, now: Instant, random: f64) -> ConnectionAction {
        self.set_replacement(Replacement::Waiting);
        let delay = replacement_delay(self.rejected_replacements, self.is_urgent(now), random);
        ConnectionAction::ReplaceAfter(delay)
    }

    fn is_urgent(&self, now: Instant) -> bool {
        self.urgent_until.is_some_and(|until| now < until)
    }

    fn replacement(&self) -> Option<Replacement> {
        match self.state {
            State::Connected { replacement, .. } => Some(replacement),
            State::Idle | State::Connecting | State::Backoff | State::ShutDown => None,
        }
    }

    fn set_replacement(&mut self, new: Replacement) {
        if let State::Connected { replacement, .. } = &mut self.state {
            *replacement = new;
        }
    }
}

#[cfg(test)]
mod tests;
