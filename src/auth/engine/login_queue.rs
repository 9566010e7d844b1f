//! Single flight of logins: at most one is in flight, and every request that needs its token waits for it.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind};

/// Delay before the next login after wrong credentials: hashing a password is expensive for the server.
const DELAY_AFTER_REJECTION: Duration = Duration::from_millis(500);

/// The requests that wait for a token, and the state of the login. `W` is the response channel of a request.
pub(super) struct LoginQueue<W> {
    state: LoginState<W>,
    /// Number of logins so far, which is also the number of the newest one.
    logins: u64,
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
    /// Start the login with this number. The request waits for it.
    StartLogin(u64),
    /// Do nothing. The request waits for the login in flight.
    Wait,
}

impl<W> LoginQueue<W> {
    pub(super) fn new() -> Self {
        Self {
            state: LoginState::Idle,
            logins: 0,
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
            Some((at, error)) if now < *at + DELAY_AFTER_REJECTION => {
                RenewalDecision::RecentlyRejected(waiter, error.clone())
            }
            _ => RenewalDecision::StartLogin(self.start(vec![waiter])),
        }
    }

    /// Returns the number of a login to start before the token expires, or `None` if a login is in flight.
    pub(super) fn start_early(&mut self) -> Option<u64> {
        match self.state {
            LoginState::Idle => Some(self.start(Vec::new())),
            LoginState::InFlight { .. } => None,
        }
    }

    /// Handles a crash of the actor, which ended the login in flight. Returns the number of the login that replaces it,
    /// if requests wait.
    pub(super) fn restart(&mut self) -> Option<u64> {
        let waiting = self.take_waiting()?;
        (!waiting.is_empty()).then(|| self.start(waiting))
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

    fn start(&mut self, waiting: Vec<W>) -> u64 {
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

    fn wrong_password() -> Error {
        Error::new(ErrorKind::AuthFailed, Outcome::Rejected, "")
    }

    #[test]
    fn many_rejected_requests_cause_one_login() {
        let now = Instant::now();
        let mut queue = LoginQueue::new();
        assert!(matches!(queue.request(1, 4, 4, now), StartLogin(1)));
        for waiter in 2..100 {
            assert!(matches!(queue.request(waiter, 4, 4, now), Wait));
        }
        assert_eq!(queue.finish(1, None, now).unwrap().len(), 99);
        // A request rejected with the old token finds the new one.
        assert!(matches!(queue.request(0, 4, 5, now), AlreadyRenewed(0)));
        assert!(matches!(queue.request(0, 5, 5, now), StartLogin(2)));
    }

    #[test]
    fn wrong_credentials_delay_the_next_login() {
        let now = Instant::now();
        let mut queue = LoginQueue::new();
        let _ = queue.request(1, 0, 0, now);
        queue.finish(1, Some(&wrong_password()), now);
        let early = queue.request(2, 0, 0, now + DELAY_AFTER_REJECTION / 2);
        assert!(matches!(early, RecentlyRejected(2, _)));
        let later = queue.request(2, 0, 0, now + DELAY_AFTER_REJECTION);
        assert!(matches!(later, StartLogin(2)));
        let transient = Error::new(ErrorKind::Unavailable, Outcome::NotSent, "");
        queue.finish(2, Some(&transient), now);
        assert!(matches!(queue.request(3, 0, 0, now), StartLogin(3)));
    }

    #[test]
    fn early_login_serves_later_requests() {
        let now = Instant::now();
        let mut queue = LoginQueue::new();
        assert_eq!(queue.start_early(), Some(1));
        assert_eq!(queue.start_early(), None);
        assert!(matches!(queue.request(7, 4, 4, now), Wait));
        assert_eq!(queue.finish(1, None, now), Some(vec![7]));
        assert_eq!(queue.start_early(), Some(2));
    }

    #[test]
    fn login_from_before_a_crash_is_ignored() {
        let now = Instant::now();
        let mut queue = LoginQueue::new();
        let _ = queue.request(1, 0, 0, now);
        assert_eq!(queue.restart(), Some(2));
        assert_eq!(queue.finish(1, None, now), None);
        assert_eq!(queue.finish(2, None, now), Some(vec![1]));
        assert_eq!(queue.finish(2, None, now), None);
        assert_eq!(queue.restart(), None);
    }
}
