//! Single flight of logins: at most one is in flight, and every request that needs its token waits for it.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind};

/// Shortest time between the starts of two logins: hashing a password is expensive for the server.
const LOGIN_SPACING: Duration = Duration::from_secs(1);

/// The requests that wait for a token, and the state of the login. `W` is the response channel of a request.
pub(super) struct LoginQueue<W> {
    state: LoginState<W>,
    /// Number of logins so far, which is also the number of the newest one.
    logins: u64,
    /// Time at which the newest login starts or started.
    last_start: Option<Instant>,
    /// Time and error of the last login, if its credentials were rejected.
    last_rejection: Option<(Instant, Error)>,
}

enum LoginState<W> {
    Idle,
    /// The newest login is in flight.
    InFlight {
        waiting: Vec<W>,
    },
}

/// What to do for a request that needs a new token.
#[derive(Debug)]
pub(super) enum RenewalDecision<W> {
    /// Respond with success: the token was renewed already.
    AlreadyRenewed(W),
    /// Respond with this error: the credentials were rejected a moment ago.
    RecentlyRejected(W, Error),
    /// Start the login with this number after the delay. The request waits for it.
    StartLogin { login: u64, delay: Duration },
    /// Do nothing. The request waits for the login in flight.
    Wait,
}

impl<W> LoginQueue<W> {
    pub(super) fn new() -> Self {
        Self {
            state: LoginState::Idle,
            logins: 0,
            last_start: None,
            last_rejection: None,
        }
    }

    /// Handles a request whose token of generation `outdated` cannot be used, while the cell holds generation
    /// `current`.
    pub(super) fn request(
        &mut self,
        waiter: W,
        outdated: u64,
        current: u64,
        now: Instant,
    ) -> RenewalDecision<W> {
        if current > outdated {
            return RenewalDecision::AlreadyRenewed(waiter);
        }
        if let LoginState::InFlight { waiting } = &mut self.state {
            waiting.push(waiter);
            return RenewalDecision::Wait;
        }
        match &self.last_rejection {
            Some((at, error)) if now < *at + LOGIN_SPACING => {
                RenewalDecision::RecentlyRejected(waiter, error.clone())
            }
            _ => {
                let allowed = self.last_start.map_or(now, |last| last + LOGIN_SPACING);
                let start = allowed.max(now);
                RenewalDecision::StartLogin {
                    login: self.start(vec![waiter], start),
                    delay: start - now,
                }
            }
        }
    }

    /// Returns the number of a login to start before the token expires, or `None` if a login is in flight.
    pub(super) fn start_early(&mut self, now: Instant) -> Option<u64> {
        match self.state {
            LoginState::Idle => Some(self.start(Vec::new(), now)),
            LoginState::InFlight { .. } => None,
        }
    }

    /// Handles a crash of the actor, which ended the login in flight. Returns the number of the login that replaces it,
    /// if requests wait.
    pub(super) fn restart(&mut self, now: Instant) -> Option<u64> {
        let waiting = self.take_waiting()?;
        (!waiting.is_empty()).then(|| self.start(waiting, now))
    }

    /// Handles the end of a login. Returns the requests that wait for it, or `None` if that login is not in flight.
    pub(super) fn finish(
        &mut self,
        login: u64,
        failure: Option<&Error>,
        now: Instant,
    ) -> Option<Vec<W>> {
        if login != self.logins {
            return None;
        }
        let waiting = self.take_waiting()?;
        self.last_rejection = failure
            .filter(|error| error.kind() == ErrorKind::AuthFailed)
            .map(|error| (now, error.clone()));
        Some(waiting)
    }

    fn start(&mut self, waiting: Vec<W>, at: Instant) -> u64 {
        self.last_start = Some(at);
        self.state = LoginState::InFlight { waiting };
        self.logins += 1;
        self.logins
    }

    /// Becomes idle. Returns the waiting requests if a login was in flight.
    fn take_waiting(&mut self) -> Option<Vec<W>> {
        match std::mem::replace(&mut self.state, LoginState::Idle) {
            LoginState::Idle => None,
            LoginState::InFlight { waiting } => Some(waiting),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RenewalDecision::*, *};
    use crate::error::Outcome;

    fn starts<W>(decision: &RenewalDecision<W>, number: u64, after: Duration) -> bool {
        matches!(decision, StartLogin { login, delay } if (*login, *delay) == (number, after))
    }

    fn wrong_password() -> Error {
        Error::new(ErrorKind::AuthFailed, Outcome::Rejected, "")
    }

    #[test]
    fn many_rejected_requests_cause_one_login() {
        let now = Instant::now();
        let mut queue = LoginQueue::new();
        assert!(starts(&queue.request(1, 4, 4, now), 1, Duration::ZERO));
        for waiter in 2..100 {
            assert!(matches!(queue.request(waiter, 4, 4, now), Wait));
        }
        assert_eq!(queue.finish(1, None, now).unwrap().len(), 99);
        // A request rejected with the old token finds the new one.
        assert!(matches!(queue.request(0, 4, 5, now), AlreadyRenewed(0)));
        let half = LOGIN_SPACING / 2;
        assert!(starts(&queue.request(0, 5, 5, now + half), 2, half));
    }

    #[test]
    fn logins_are_spaced() {
        let start = Instant::now();
        let mut queue = LoginQueue::new();
        for login in 1..=5 {
            let now = start + LOGIN_SPACING * u32::try_from(login - 1).unwrap();
            assert!(starts(
                &queue.request(0, login, login, now),
                login,
                Duration::ZERO
            ));
            queue.finish(login, None, now);
        }
        // Also after a failure.
        let now = start + LOGIN_SPACING * 4;
        assert!(starts(&queue.request(0, 6, 6, now), 6, LOGIN_SPACING));
        let transient = Error::new(ErrorKind::Unavailable, Outcome::NotSent, "");
        queue.finish(6, Some(&transient), now + LOGIN_SPACING);
        let next = queue.request(0, 6, 6, now + LOGIN_SPACING);
        assert!(starts(&next, 7, LOGIN_SPACING));
    }

    #[test]
    fn wrong_credentials_delay_the_next_login() {
        let now = Instant::now();
        let mut queue = LoginQueue::new();
        let _ = queue.request(1, 0, 0, now);
        queue.finish(1, Some(&wrong_password()), now);
        let early = queue.request(2, 0, 0, now + LOGIN_SPACING / 2);
        assert!(matches!(early, RecentlyRejected(2, _)));
        let later = queue.request(2, 0, 0, now + LOGIN_SPACING);
        assert!(starts(&later, 2, Duration::ZERO));
    }

    #[test]
    fn early_login_serves_later_requests() {
        let now = Instant::now();
        let mut queue = LoginQueue::new();
        assert_eq!(queue.start_early(now), Some(1));
        assert_eq!(queue.start_early(now), None);
        assert!(matches!(queue.request(7, 4, 4, now), Wait));
        assert_eq!(queue.finish(1, None, now), Some(vec![7]));
        assert_eq!(queue.start_early(now), Some(2));
    }

    #[test]
    fn login_from_before_a_crash_is_ignored() {
        let now = Instant::now();
        let mut queue = LoginQueue::new();
        let _ = queue.request(1, 0, 0, now);
        assert_eq!(queue.restart(now), Some(2));
        assert_eq!(queue.finish(1, None, now), None);
        assert_eq!(queue.finish(2, None, now), Some(vec![1]));
        assert_eq!(queue.finish(2, None, now), None);
        assert_eq!(queue.restart(now), None);
    }
}
