//! Decides which runtime drives a connection: the client's own, or the one that its callers run on.
//!
//! A connection that is driven where its callers run costs no change of threads per call. But the driver makes no
//! progress while the application blocks that runtime, and callers on other runtimes depend on it. So a runtime gets the
//! connection only while it makes most of the calls, makes them often, and polls its tasks.

use std::time::Duration;

use tokio::time::Instant;

/// Number of samples in a row from one runtime before it gets the connection.
const REQUIRED_SAMPLES: u32 = 4;
/// Longest time in which they arrive.
const SAMPLE_WINDOW: Duration = Duration::from_millis(100);
/// Number of samples after which the share of other runtimes is judged.
const JUDGED_SAMPLES: u32 = 16;
/// Number of samples from other runtimes, among the judged ones, that return the connection to the client.
const FOREIGN_SAMPLES: u32 = 4;
/// Number of checks without a call after which the client drives the connection again.
const IDLE_CHECKS: u32 = 5;
/// Time for which the client keeps a connection that it took back from a blocked runtime, or because several runtimes
/// make calls. Doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// The same after a runtime could not register the socket.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(3600);
/// The pause is reset if callers drove the connection for this long.
const STEADY_AFTER: Duration = Duration::from_secs(10);

/// The choice of one connection. `R` identifies a runtime.
#[derive(Debug)]
pub(super) struct DriverChoice<R> {
    state: Drive<R>,
    next_pause: Duration,
}

/// Who drives the connection.
#[derive(Debug)]
enum Drive<R> {
    /// The client's thread drives. After enough samples from one runtime: `Moving`.
    Client {
        candidate: Option<Candidate<R>>,
        /// No move before this time.
        not_before: Option<Instant>,
    },
    /// The driver on the runtime of the callers has been started. When it has the socket: `Callers`.
    Moving(R),
    /// The runtime of the callers drives. When it is idle, blocked, or not the only one: `Client`.
    Callers {
        runtime: R,
        since: Instant,
        samples: u32,
        foreign_samples: u32,
        last_check: Option<LastCheck>,
    },
}

#[derive(Debug)]
struct Candidate<R> {
    runtime: R,
    samples: u32,
    since: Instant,
}

#[derive(Debug)]
struct LastCheck {
    polls: u64,
    calls: u64,
    /// Whether the driver was woken by the check, because it had not been polled.
    woken: bool,
    idle_checks: u32,
}

/// What to do after a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleDecision {
    Stay,
    /// Start a driver on the runtime of this caller.
    MoveToCaller,
}

/// What the client's driver does after a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckDecision {
    Stay,
    /// Wake the driver of the callers: the next check shows whether its runtime polls it.
    WakeCallerDriver,
    MoveToClient,
}

impl<R: PartialEq> DriverChoice<R> {
    pub(super) fn new() -> Self {
        Self {
            state: Drive::Client {
                candidate: None,
                not_before: None,
            },
            next_pause: FIRST_PAUSE,
        }
    }

    /// Counts a sampled call from a runtime other than the client's.
    pub(super) fn sample(&mut self, caller: R, now: Instant) -> SampleDecision {
        match &mut self.state {
            Drive::Moving(_) => SampleDecision::Stay,
            Drive::Client {
                candidate,
                not_before,
            } => {
                if not_before.is_some_and(|time| now < time) {
                    return SampleDecision::Stay;
                }
                match candidate {
                    Some(candidate)
                        if candidate.runtime == caller
                            && now.duration_since(candidate.since) <= SAMPLE_WINDOW =>
                    {
                        candidate.samples += 1;
                        if candidate.samples < REQUIRED_SAMPLES {
                            return SampleDecision::Stay;
                        }
                        self.state = Drive::Moving(caller);
                        SampleDecision::MoveToCaller
                    }
                    _ => {
                        *candidate = Some(Candidate {
                            runtime: caller,
                            samples: 1,
                            since: now,
                        });
                        SampleDecision::Stay
                    }
                }
            }
            Drive::Callers {
                runtime,
                samples,
                foreign_samples,
                ..
            } => {
                if *samples == JUDGED_SAMPLES && *foreign_samples < FOREIGN_SAMPLES {
                    (*samples, *foreign_samples) = (0, 0);
                }
                *samples = (*samples + 1).min(JUDGED_SAMPLES);
                *foreign_samples += u32::from(*runtime != caller);
                SampleDecision::Stay
            }
        }
    }

    /// The driver on the runtime of the callers has the socket.
    pub(super) fn moved_to_callers(&mut self, now: Instant) {
        let client = Drive::Client {
            candidate: None,
            not_before: None,
        };
        match std::mem::replace(&mut self.state, client) {
            Drive::Moving(runtime) => {
                self.state = Drive::Callers {
                    runtime,
                    since: now,
                    samples: 0,
                    foreign_samples: 0,
                    last_check: None,
                };
            }
            other => self.state = other,
        }
    }

    /// The driver on the runtime of the callers could not take the socket.
    pub(super) fn move_failed(&mut self, now: Instant) {
        self.state = Drive::Client {
            candidate: None,
            not_before: Some(now + PAUSE_AFTER_FAILURE),
        };
    }

    /// The runtime of the callers ended before its driver had the socket.
    pub(super) fn move_cancelled(&mut self) {
        self.state = Drive::Client {
            candidate: None,
            not_before: None,
        };
    }

    /// Checks a connection that is driven by callers. `polls` counts the polls of their driver, `calls` the calls.
    pub(super) fn check(&mut self, polls: u64, calls: u64) -> CheckDecision {
        let Drive::Callers {
            foreign_samples,
            last_check,
            ..
        } = &mut self.state
        else {
            return CheckDecision::Stay;
        };
        if *foreign_samples >= FOREIGN_SAMPLES {
            return CheckDecision::MoveToClient;
        }
        let was_polled = last_check.as_ref().is_none_or(|last| last.polls != polls);
        let was_woken = last_check.as_ref().is_some_and(|last| last.woken);
        let idle_checks = match last_check {
            Some(last) if last.calls == calls => last.idle_checks + 1,
            _ => 0,
        };
        *last_check = Some(LastCheck {
            polls,
            calls,
            woken: !was_polled,
            idle_checks,
        });
        if idle_checks >= IDLE_CHECKS || (was_woken && !was_polled) {
            CheckDecision::MoveToClient
        } else if was_polled {
            CheckDecision::Stay
        } else {
            CheckDecision::WakeCallerDriver
        }
    }

    /// The client's thread has the socket again.
    pub(super) fn moved_to_client(&mut self, now: Instant) {
        let Drive::Callers {
            since,
            foreign_samples,
            last_check,
            ..
        } = &self.state
        else {
            return;
        };
        let is_idle = last_check
            .as_ref()
            .is_some_and(|last| last.idle_checks >= IDLE_CHECKS);
        if now.duration_since(*since) >= STEADY_AFTER {
            self.next_pause = FIRST_PAUSE;
        }
        let not_before = if is_idle && *foreign_samples < FOREIGN_SAMPLES {
            None
        } else {
            let pause = self.next_pause;
            self.next_pause = (pause * 2).min(LONGEST_PAUSE);
            Some(now + pause)
        };
        self.state = Drive::Client {
            candidate: None,
            not_before,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns a choice after the runtime 1 got the connection.
    fn driven_by_callers(now: Instant) -> DriverChoice<u8> {
        let mut choice = DriverChoice::new();
        for _ in 1..REQUIRED_SAMPLES {
            assert_eq!(choice.sample(1, now), SampleDecision::Stay);
        }
        assert_eq!(choice.sample(1, now), SampleDecision::MoveToCaller);
        assert_eq!(choice.sample(1, now), SampleDecision::Stay, "once");
        choice.moved_to_callers(now);
        choice
    }

    /// Returns whether frequent samples from the runtime 1 move the connection.
    fn moves(choice: &mut DriverChoice<u8>, now: Instant) -> bool {
        (0..REQUIRED_SAMPLES).any(|_| choice.sample(1, now) == SampleDecision::MoveToCaller)
    }

    #[test]
    fn rare_calls_stay_with_client() {
        let (start, mut choice) = (Instant::now(), DriverChoice::new());
        for number in 0..50 {
            let now = start + number * SAMPLE_WINDOW / 2;
            assert_eq!(choice.sample(1, now), SampleDecision::Stay);
        }
    }

    #[test]
    fn calls_from_several_runtimes_stay_with_client() {
        let (now, mut choice) = (Instant::now(), DriverChoice::new());
        for number in 0..50 {
            let decision = choice.sample(number % 3, now);
            assert_eq!(decision, SampleDecision::Stay);
        }
    }

    #[test]
    fn few_foreign_calls_do_not_move_the_connection() {
        let now = Instant::now();
        let mut choice = driven_by_callers(now);
        for number in 0..200 {
            let caller = if number % 6 == 0 { 2 } else { 1 };
            assert_eq!(choice.sample(caller, now), SampleDecision::Stay);
        }
        assert_eq!(choice.check(1, 1), CheckDecision::Stay);
    }

    #[test]
    fn second_busy_runtime_moves_connection_to_client() {
        let now = Instant::now();
        let mut choice = driven_by_callers(now);
        for number in 0..50 {
            choice.sample(1 + number % 2, now);
        }
        assert_eq!(choice.check(1, 1), CheckDecision::MoveToClient);
        choice.moved_to_client(now);
        assert!(!moves(&mut choice, now + FIRST_PAUSE - MS));
        assert!(moves(&mut choice, now + FIRST_PAUSE));
    }

    #[test]
    fn blocked_runtime_loses_the_connection() {
        let now = Instant::now();
        let mut choice = driven_by_callers(now);
        assert_eq!(choice.check(1, 1), CheckDecision::Stay);
        assert_eq!(choice.check(2, 2), CheckDecision::Stay);
        assert_eq!(choice.check(2, 3), CheckDecision::WakeCallerDriver);
        assert_eq!(choice.check(3, 4), CheckDecision::Stay, "polled after all");
        assert_eq!(choice.check(3, 5), CheckDecision::WakeCallerDriver);
        assert_eq!(choice.check(3, 6), CheckDecision::MoveToClient);
    }

    #[test]
    fn pause_doubles_until_a_steady_drive() {
        let mut now = Instant::now();
        let mut choice = driven_by_callers(now);
        for factor in [1, 2, 4] {
            choice.moved_to_client(now);
            assert!(!moves(&mut choice, now + FIRST_PAUSE * factor - MS));
            now += FIRST_PAUSE * factor;
            assert!(moves(&mut choice, now));
            choice.moved_to_callers(now);
        }
        now += STEADY_AFTER;
        choice.moved_to_client(now);
        assert!(moves(&mut choice, now + FIRST_PAUSE));
    }

    #[test]
    fn idle_connection_returns_to_client_without_pause() {
        let now = Instant::now();
        let mut choice = driven_by_callers(now);
        assert_eq!(choice.check(1, 7), CheckDecision::Stay);
        for polls in 2..=u64::from(IDLE_CHECKS) {
            assert_eq!(choice.check(polls, 7), CheckDecision::Stay);
        }
        assert_eq!(choice.check(9, 7), CheckDecision::MoveToClient);
        choice.moved_to_client(now);
        assert!(moves(&mut choice, now));
    }

    #[test]
    fn cancelled_move_is_repeated() {
        let (now, mut choice) = (Instant::now(), DriverChoice::new());
        assert!(moves(&mut choice, now));
        choice.move_cancelled();
        assert!(moves(&mut choice, now));
    }

    #[test]
    fn failed_move_is_not_repeated_soon() {
        let (now, mut choice) = (Instant::now(), DriverChoice::new());
        assert!(moves(&mut choice, now));
        choice.move_failed(now);
        assert!(!moves(&mut choice, now + LONGEST_PAUSE));
    }
}
