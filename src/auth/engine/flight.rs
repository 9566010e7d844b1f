//! At most one login under way, whatever number of calls ask for one. Pure: times are arguments.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind};

/// After wrong credentials the next login waits: the server hashes each password at great cost.
const AFTER_REFUSAL: Duration = Duration::from_millis(500);

/// The login under way, and who waits for it.
pub(super) struct Flight<W> {
    number: u64,
    under_way: bool,
    waiting: Vec<W>,
    refused: Option<(Instant, Error)>,
}

/// What to do for a call whose token was refused.
#[derive(Debug)]
pub(super) enum Boarding<W> {
    /// There is a newer token already.
    Renewed(W),
    /// The credentials were refused a moment ago.
    Refused(W, Error),
    /// It waits, and a login of this number is to be started.
    Start(u64),
    /// It waits for the login under way.
    Wait,
}

impl<W> Flight<W> {
    pub(super) fn new() -> Self {
        Self {
            number: 0,
            under_way: false,
            waiting: Vec::new(),
            refused: None,
        }
    }

    /// A call had its token of generation `refused` turned down, and `current` is the one in use.
    pub(super) fn board(
        &mut self,
        waiter: W,
        refused: u64,
        current: u64,
        now: Instant,
    ) -> Boarding<W> {
        if current > refused {
            return Boarding::Renewed(waiter);
        }
        if self.under_way {
            self.waiting.push(waiter);
            return Boarding::Wait;
        }
        match &self.refused {
            Some((at, error)) if now < *at + AFTER_REFUSAL => {
                return Boarding::Refused(waiter, error.clone());
            }
            _ => {}
        }
        self.waiting.push(waiter);
        Boarding::Start(self.start())
    }

    /// The token in use ends soon, though nobody was refused yet: a login of this number is to be started. `None` where
    /// one is under way.
    pub(super) fn start_early(&mut self) -> Option<u64> {
        (!self.under_way).then(|| self.start())
    }

    /// The login under way was lost with a crash: a new one, if anybody waits.
    pub(super) fn restart(&mut self) -> Option<u64> {
        self.under_way = false;
        (!self.waiting.is_empty()).then(|| self.start())
    }

    /// A login ended: who waited for it. `None` for one that was given up before.
    pub(super) fn land(
        &mut self,
        number: u64,
        failure: Option<&Error>,
        now: Instant,
    ) -> Option<Vec<W>> {
        if !self.under_way || number != self.number {
            return None;
        }
        self.under_way = false;
        self.refused = failure
            .filter(|error| error.kind() == ErrorKind::AuthFailed)
            .map(|error| (now, error.clone()));
        Some(std::mem::take(&mut self.waiting))
    }

    fn start(&mut self) -> u64 {
        self.number += 1;
        self.under_way = true;
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;

    fn wrong_password() -> Error {
        Error::new(ErrorKind::AuthFailed, Outcome::Rejected, "")
    }

    #[test]
    fn many_refused_calls_cause_one_login() {
        let now = Instant::now();
        let mut flight = Flight::new();
        assert!(matches!(flight.board(1, 4, 4, now), Boarding::Start(1)));
        for waiter in 2..100 {
            assert!(matches!(flight.board(waiter, 4, 4, now), Boarding::Wait));
        }
        assert_eq!(flight.land(1, None, now).unwrap().len(), 99);
        // Late ones that were refused with the old token find the new one.
        assert!(matches!(flight.board(0, 4, 5, now), Boarding::Renewed(0)));
        assert!(matches!(flight.board(0, 5, 5, now), Boarding::Start(2)));
    }

    #[test]
    fn wrong_credentials_are_not_tried_again_at_once() {
        let now = Instant::now();
        let mut flight = Flight::new();
        let _ = flight.board(1, 0, 0, now);
        flight.land(1, Some(&wrong_password()), now);
        let early = flight.board(2, 0, 0, now + AFTER_REFUSAL / 2);
        assert!(matches!(early, Boarding::Refused(2, _)));
        let later = flight.board(2, 0, 0, now + AFTER_REFUSAL);
        assert!(matches!(later, Boarding::Start(2)));
        let passing = Error::new(ErrorKind::Unavailable, Outcome::NotSent, "");
        flight.land(2, Some(&passing), now);
        assert!(matches!(flight.board(3, 0, 0, now), Boarding::Start(3)));
    }

    #[test]
    fn a_login_ahead_of_time_serves_those_who_come_meanwhile() {
        let now = Instant::now();
        let mut flight = Flight::new();
        assert_eq!(flight.start_early(), Some(1));
        assert_eq!(flight.start_early(), None);
        assert!(matches!(flight.board(7, 4, 4, now), Boarding::Wait));
        assert_eq!(flight.land(1, None, now), Some(vec![7]));
        assert_eq!(flight.start_early(), Some(2));
    }

    #[test]
    fn a_login_from_before_a_crash_lands_nowhere() {
        let now = Instant::now();
        let mut flight = Flight::new();
        let _ = flight.board(1, 0, 0, now);
        assert_eq!(flight.restart(), Some(2));
        assert_eq!(flight.land(1, None, now), None);
        assert_eq!(flight.land(2, None, now), Some(vec![1]));
        assert_eq!(flight.land(2, None, now), None);
        assert_eq!(flight.restart(), None);
    }
}
