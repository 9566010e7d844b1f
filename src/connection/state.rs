//! The states of a connection and the delay between attempts. Pure: time and chance are arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::ConnectivityState;

const FIRST_DELAY: Duration = Duration::from_millis(50);
const GROWTH: f64 = 1.6;
const LONGEST_DELAY: Duration = Duration::from_secs(3);
/// While calls wait for a member, attempts are no further apart than this.
const LONGEST_DELAY_WANTED: Duration = Duration::from_millis(150);
const JITTER: f64 = 0.2;
/// A connection that lived longer than this was a good one: the next attempt follows at once.
const GOOD_LIFE: Duration = Duration::from_millis(200);
/// How long one call's wish for a member speeds up the attempts.
const WANTED_FOR: Duration = Duration::from_secs(1);

/// What the actor has to do after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: the event was stale or changes nothing.
    Stay,
    /// Dial; the attempt has this generation.
    Dial(u64),
    /// Dial after a while: call [`Machine::retry`] then.
    Wait(Duration),
    /// Take the new connection into use, or tell a change of the one in use.
    Use,
    /// Close what there is.
    Close,
}

/// The life of one endpoint's connection.
#[derive(Debug)]
pub(crate) struct Machine {
    state: ConnectivityState,
    generation: u64,
    failures: u32,
    established: Option<Instant>,
    wanted_until: Option<Instant>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self {
            state: ConnectivityState::Idle,
            generation: 0,
            failures: 0,
            established: None,
            wanted_until: None,
        }
    }

    pub(crate) fn state(&self) -> ConnectivityState {
        self.state
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// A connection is asked for.
    pub(crate) fn connect(&mut self) -> Next {
        match self.state {
            ConnectivityState::Idle => self.dial(),
            ConnectivityState::Connecting
            | ConnectivityState::Ready
            | ConnectivityState::NoLeader
            | ConnectivityState::TransientFailure
            | ConnectivityState::Shutdown => Next::Stay,
        }
    }

    /// Calls wait for any member.
    pub(crate) fn wanted(&mut self, now: Instant) -> Next {
        let fresh = self.wanted_until.is_none_or(|until| until < now);
        self.wanted_until = Some(now + WANTED_FOR);
        match self.state {
            // A long delay may be under way: the first wish ends it, later ones find it short already.
            ConnectivityState::TransientFailure if fresh => self.dial(),
            ConnectivityState::Idle => self.dial(),
            ConnectivityState::TransientFailure
            | ConnectivityState::Connecting
            | ConnectivityState::Ready
            | ConnectivityState::NoLeader
            | ConnectivityState::Shutdown => Next::Stay,
        }
    }

    /// The delay of [`Next::Wait`] is over.
    pub(crate) fn retry(&mut self) -> Next {
        match self.state {
            ConnectivityState::TransientFailure => self.dial(),
            ConnectivityState::Idle
            | ConnectivityState::Connecting
            | ConnectivityState::Ready
            | ConnectivityState::NoLeader
            | ConnectivityState::Shutdown => Next::Stay,
        }
    }

    /// An attempt gave a connection on which an RPC was answered.
    pub(crate) fn dialled(&mut self, generation: u64, has_leader: bool, now: Instant) -> Next {
        if generation != self.generation || self.state != ConnectivityState::Connecting {
            return Next::Stay;
        }
        self.established = Some(now);
        self.state = if has_leader {
            ConnectivityState::Ready
        } else {
            ConnectivityState::NoLeader
        };
        Next::Use
    }

    /// An attempt failed.
    pub(crate) fn dial_failed(&mut self, generation: u64, now: Instant, chance: f64) -> Next {
        if generation != self.generation || self.state != ConnectivityState::Connecting {
            return Next::Stay;
        }
        self.fail(now, chance)
    }

    /// The connection in use ended or was given up.
    pub(crate) fn lost(&mut self, generation: u64, now: Instant, chance: f64) -> Next {
        let in_use = matches!(
            self.state,
            ConnectivityState::Ready | ConnectivityState::NoLeader
        );
        if generation != self.generation || !in_use {
            return Next::Stay;
        }
        let lived = self
            .established
            .take()
            .map(|since| now.duration_since(since));
        if lived.is_some_and(|lived| lived >= GOOD_LIFE) {
            self.failures = 0;
            self.state = ConnectivityState::TransientFailure;
            return Next::Wait(Duration::ZERO);
        }
        self.fail(now, chance)
    }

    /// The connection in use was no good, however long it lived: the next one is made after a delay.
    pub(crate) fn disappointed(&mut self) {
        self.established = None;
    }

    /// A probe told whether the member has a leader.
    pub(crate) fn leader_seen(&mut self, generation: u64, has_leader: bool) -> Next {
        if generation != self.generation {
            return Next::Stay;
        }
        let next = if has_leader {
            ConnectivityState::Ready
        } else {
            ConnectivityState::NoLeader
        };
        match self.state {
            ConnectivityState::Ready | ConnectivityState::NoLeader if self.state != next => {
                self.state = next;
                Next::Use
            }
            ConnectivityState::Ready
            | ConnectivityState::NoLeader
            | ConnectivityState::Idle
            | ConnectivityState::Connecting
            | ConnectivityState::TransientFailure
            | ConnectivityState::Shutdown => Next::Stay,
        }
    }

    /// No connection is wanted until the next [`Machine::connect`].
    pub(crate) fn rest(&mut self) -> Next {
        if self.state == ConnectivityState::Shutdown {
            return Next::Stay;
        }
        self.generation += 1;
        self.failures = 0;
        self.state = ConnectivityState::Idle;
        Next::Close
    }

    /// No connection is wanted any more.
    pub(crate) fn shut_down(&mut self) -> Next {
        self.generation += 1;
        self.state = ConnectivityState::Shutdown;
        Next::Close
    }

    /// The actor was started again after a crash: an attempt that was under way may never report.
    pub(crate) fn restarted(&mut self) -> Next {
        match self.state {
            ConnectivityState::Connecting | ConnectivityState::TransientFailure => self.dial(),
            ConnectivityState::Ready | ConnectivityState::NoLeader => Next::Use,
            ConnectivityState::Idle | ConnectivityState::Shutdown => Next::Stay,
        }
    }

    fn dial(&mut self) -> Next {
        self.generation += 1;
        self.state = ConnectivityState::Connecting;
        Next::Dial(self.generation)
    }

    fn fail(&mut self, now: Instant, chance: f64) -> Next {
        self.state = ConnectivityState::TransientFailure;
        let wanted = self.wanted_until.is_some_and(|until| now < until);
        let delay = delay(self.failures, wanted, chance);
        self.failures = self.failures.saturating_add(1);
        Next::Wait(delay)
    }
}

/// 50 ms, growing by 1.6 up to 3 s (150 ms while calls wait), ± 20 %.
fn delay(failures: u32, wanted: bool, chance: f64) -> Duration {
    let longest = if wanted {
        LONGEST_DELAY_WANTED
    } else {
        LONGEST_DELAY
    };
    let exponent = i32::try_from(failures.min(64)).unwrap_or(64);
    let grown = FIRST_DELAY.as_secs_f64() * GROWTH.powi(exponent);
    let base = grown.min(longest.as_secs_f64());
    Duration::from_secs_f64(base * (1.0 - JITTER + 2.0 * JITTER * chance))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(now: Instant) -> Machine {
        let mut machine = Machine::new();
        assert_eq!(machine.connect(), Next::Dial(1));
        assert_eq!(machine.dialled(1, true, now), Next::Use);
        machine
    }

    #[test]
    fn a_stale_generation_changes_nothing() {
        let now = Instant::now();
        let mut machine = ready(now);
        assert_eq!(machine.lost(0, now, 0.5), Next::Stay);
        assert_eq!(machine.leader_seen(0, false), Next::Stay);
        assert_eq!(machine.dial_failed(0, now, 0.5), Next::Stay);
        assert_eq!(machine.state(), ConnectivityState::Ready);
    }

    #[test]
    fn a_good_connection_that_ends_is_made_again_at_once() {
        let now = Instant::now();
        let mut machine = ready(now);
        let later = now + Duration::from_secs(5);
        assert_eq!(machine.lost(1, later, 0.5), Next::Wait(Duration::ZERO));
        assert_eq!(machine.retry(), Next::Dial(2));
    }

    #[test]
    fn a_connection_that_ends_at_once_is_not_made_again_in_a_loop() {
        let mut now = Instant::now();
        let mut machine = ready(now);
        let mut waits = Vec::new();
        for _ in 0..5 {
            now += Duration::from_millis(1);
            let Next::Wait(wait) = machine.lost(machine.generation(), now, 0.5) else {
                panic!("a lost connection waits")
            };
            waits.push(wait);
            machine.retry();
            machine.dialled(machine.generation(), true, now);
        }
        assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
        assert!(waits[0] >= Duration::from_millis(40));
    }

    #[test]
    fn a_connection_that_disappointed_is_made_again_after_a_delay() {
        let now = Instant::now();
        let mut machine = ready(now);
        machine.disappointed();
        let Next::Wait(wait) = machine.lost(1, now + Duration::from_secs(5), 0.5) else {
            panic!("a lost connection waits")
        };
        assert!(wait >= Duration::from_millis(40), "{wait:?}");
    }

    #[test]
    fn waiting_calls_shorten_the_delay() {
        let now = Instant::now();
        let mut machine = Machine::new();
        machine.connect();
        for _ in 0..20 {
            machine.dial_failed(machine.generation(), now, 0.5);
            machine.retry();
        }
        let Next::Wait(unwanted) = machine.dial_failed(machine.generation(), now, 1.0) else {
            panic!()
        };
        assert!(unwanted > Duration::from_secs(2));
        assert_eq!(machine.wanted(now), Next::Dial(machine.generation()));
        let Next::Wait(wanted) = machine.dial_failed(machine.generation(), now, 1.0) else {
            panic!()
        };
        assert!(wanted <= Duration::from_millis(180));
        assert_eq!(
            machine.wanted(now),
            Next::Stay,
            "the short delay stays as it is"
        );
    }

    #[test]
    fn a_member_without_leader_comes_back_when_it_has_one() {
        let now = Instant::now();
        let mut machine = ready(now);
        assert_eq!(machine.leader_seen(1, false), Next::Use);
        assert_eq!(machine.state(), ConnectivityState::NoLeader);
        assert_eq!(machine.leader_seen(1, false), Next::Stay);
        assert_eq!(machine.leader_seen(1, true), Next::Use);
        assert_eq!(machine.state(), ConnectivityState::Ready);
    }

    #[test]
    fn after_shutdown_nothing_starts_again() {
        let now = Instant::now();
        let mut machine = ready(now);
        assert_eq!(machine.shut_down(), Next::Close);
        for next in [
            machine.connect(),
            machine.wanted(now),
            machine.retry(),
            machine.restarted(),
            machine.rest(),
        ] {
            assert_eq!(next, Next::Stay);
        }
    }

    proptest! {
        #[test]
        fn delays_are_bounded_and_never_zero(failures in 0u32..1000, wanted: bool, chance in 0.0f64..=1.0) {
            let delay = delay(failures, wanted, chance);
            prop_assert!(delay >= Duration::from_millis(40));
            let longest = if wanted { 150 } else { 3000 };
            prop_assert!(delay <= Duration::from_millis(longest * 12 / 10));
        }
    }
}
