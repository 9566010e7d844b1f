//! The time one lease of a session is held: what locks and elections go by.
//!
//! A session that heals goes on with another lease; whatever was held by the one before is lost all the same.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::session::Shared;
use crate::{
    error::{Error, ErrorKind, Outcome},
    lease::LeaseLost,
};

/// Why a lock or a leadership is not held any more, or not for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnershipLost {
    /// The lease's deadline has passed without an answer: the server may have given it to somebody else.
    AtRisk,
    /// The session's lease was lost.
    Session(LeaseLost),
    /// The session was closed or dropped.
    Closed,
    /// Its key was deleted, or taken over by another session.
    Taken,
}

impl fmt::Display for OwnershipLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtRisk => f.write_str("the deadline of its lease has passed without an answer"),
            Self::Session(reason) => write!(f, "the lease of its session was lost: {reason:?}"),
            Self::Closed => f.write_str("its session was closed"),
            Self::Taken => f.write_str("its key was deleted or taken over"),
        }
    }
}

impl From<OwnershipLost> for Error {
    fn from(loss: OwnershipLost) -> Self {
        let kind = match loss {
            OwnershipLost::AtRisk | OwnershipLost::Taken => ErrorKind::LockLost,
            OwnershipLost::Session(_) | OwnershipLost::Closed => ErrorKind::SessionLost,
        };
        Self::new(kind, Outcome::Rejected, loss.to_string())
    }
}

/// How a session's lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    lease: i64,
    standing: Standing,
    /// Why the lease before was lost.
    before: Option<LeaseLost>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Certain,
    AtRisk,
    Lost(LeaseLost),
    Closed,
}

impl Term {
    /// Why that lease is over, if it is.
    fn over(&self, lease: i64) -> Option<OwnershipLost> {
        if self.lease != lease {
            return Some(OwnershipLost::Session(
                self.before.unwrap_or(LeaseLost::Expired),
            ));
        }
        match self.standing {
            Standing::Certain | Standing::AtRisk => None,
            Standing::Lost(reason) => Some(OwnershipLost::Session(reason)),
            Standing::Closed => Some(OwnershipLost::Closed),
        }
    }

    /// Why that lease is over or at risk, if it is.
    fn doubtful(&self, lease: i64) -> Option<OwnershipLost> {
        let risk = (self.standing == Standing::AtRisk).then_some(OwnershipLost::AtRisk);
        self.over(lease).or(risk)
    }

    /// Whether that lease is certain, or over. By the clock, too: news of its deadline may be late.
    fn certainty(&self, lease: i64, remaining: Duration) -> Option<Result<(), OwnershipLost>> {
        match self.doubtful(lease) {
            None => (remaining > MARGIN).then_some(Ok(())),
            Some(OwnershipLost::AtRisk) => None,
            Some(loss) => Some(Err(loss)),
        }
    }
}

/// Told by the session, followed by whoever holds something by its lease.
pub(super) struct TermCell(watch::Sender<Term>);

impl TermCell {
    pub(super) fn new(lease: i64) -> Self {
        Self(watch::Sender::new(Term {
            lease,
            standing: Standing::Certain,
            before: None,
        }))
    }

    /// There is a new lease.
    pub(super) fn begin(&self, lease: i64) {
        self.change(|term| {
            if let Standing::Lost(reason) = term.standing {
                term.before = Some(reason);
            }
            term.lease = lease;
            term.standing = Standing::Certain;
        });
    }

    pub(super) fn certain(&self) {
        self.change(|term| term.standing = Standing::Certain);
    }

    pub(super) fn at_risk(&self) {
        self.change(|term| term.standing = Standing::AtRisk);
    }

    /// The lease is lost; of several reasons the first counts.
    pub(super) fn lost(&self, reason: LeaseLost) {
        self.change(|term| {
            if !matches!(term.standing, Standing::Lost(_)) {
                term.standing = Standing::Lost(reason);
            }
        });
    }

    pub(super) fn close(&self) {
        // Why it was lost says more than that it was closed afterwards.
        self.change(|term| {
            if !matches!(term.standing, Standing::Lost(_)) {
                term.standing = Standing::Closed;
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Term)) {
        self.0.send_if_modified(|term| {
            let before = *term;
            if before.standing != Standing::Closed {
                change(term);
            }
            *term != before
        });
    }
}

/// Longer than the news of a loss needs to reach its holder; a lease that is renewed never comes this close to its end.
const MARGIN: Duration = Duration::from_millis(200);

/// One lease of a session, and how long it is held.
#[derive(Clone)]
pub(super) struct Tenure {
    session: Arc<Shared>,
    lease: i64,
}

impl Tenure {
    /// Of the lease the session has now.
    pub(super) fn current(session: &Arc<Shared>) -> Result<Self, OwnershipLost> {
        let term = *session.term.0.borrow();
        match term.over(term.lease) {
            Some(loss) => Err(loss),
            None => Ok(Self {
                session: session.clone(),
                lease: term.lease,
            }),
        }
    }

    pub(super) fn lease(&self) -> i64 {
        self.lease
    }

    /// How long the server has the lease for certain.
    pub(super) fn remaining(&self) -> Duration {
        self.session.remaining(|lease| lease == self.lease)
    }

    /// Waits until the lease is over.
    pub(super) async fn over(&self) -> OwnershipLost {
        self.until(|term| term.over(self.lease)).await
    }

    /// Waits until the lease is over or at risk. At risk it is a moment before its deadline: whoever holds something by
    /// it must hear of that before the server can give it to somebody else.
    pub(super) async fn doubtful(&self) -> OwnershipLost {
        tokio::select! {
            biased;
            loss = self.until(|term| term.doubtful(self.lease)) => loss,
            () = self.nearly_over() => OwnershipLost::AtRisk,
        }
    }

    async fn nearly_over(&self) {
        loop {
            let spare = self.remaining().saturating_sub(MARGIN);
            if spare.is_zero() {
                return;
            }
            tokio::time::sleep(spare).await;
        }
    }

    /// Waits until the server has the lease for certain; fails when it is over.
    pub(super) async fn certain(&self) -> Result<(), OwnershipLost> {
        let certainty = |term: &Term| term.certainty(self.lease, self.remaining());
        loop {
            // A renewal moves the deadline, and may be no news otherwise.
            tokio::select! {
                biased;
                certain = self.until(certainty) => return certain,
                () = tokio::time::sleep(MARGIN / 10) => {}
            }
        }
    }

    async fn until<T>(&self, holds: impl Fn(&Term) -> Option<T>) -> T {
        let mut term = self.session.term.0.subscribe();
        loop {
            let now = *term.borrow_and_update();
            if let Some(found) = holds(&now) {
                return found;
            }
            // The sender is in the session, which is held here.
            if term.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(cell: &TermCell) -> Term {
        *cell.0.borrow()
    }

    #[test]
    fn a_lease_at_risk_is_doubtful_but_not_over_and_may_become_certain_again() {
        let cell = TermCell::new(7);
        cell.at_risk();
        assert_eq!(term(&cell).doubtful(7), Some(OwnershipLost::AtRisk));
        assert_eq!(term(&cell).over(7), None);
        cell.certain();
        assert_eq!(term(&cell).doubtful(7), None);
    }

    #[test]
    fn a_lease_is_certain_only_while_its_holder_has_time_to_hear_of_its_loss() {
        let cell = TermCell::new(7);
        let certainty = |lease, remaining| term(&cell).certainty(lease, remaining);
        assert_eq!(certainty(7, 2 * MARGIN), Some(Ok(())));
        // The news that its deadline has passed is late.
        assert_eq!(certainty(7, Duration::ZERO), None);
        assert_eq!(certainty(7, MARGIN), None);
        cell.at_risk();
        assert_eq!(certainty(7, 2 * MARGIN), None);
        cell.lost(LeaseLost::Expired);
        let lost = Err(OwnershipLost::Session(LeaseLost::Expired));
        assert_eq!(certainty(7, 2 * MARGIN), Some(lost));
    }

    #[test]
    fn what_a_healed_session_held_by_its_former_lease_is_lost() {
        let cell = TermCell::new(7);
        cell.lost(LeaseLost::Revoked);
        cell.begin(8);
        assert_eq!(
            term(&cell).over(7),
            Some(OwnershipLost::Session(LeaseLost::Revoked))
        );
        assert_eq!(term(&cell).over(8), None);
    }

    #[test]
    fn closed_is_the_last_word_unless_the_lease_was_lost_before() {
        let cell = TermCell::new(7);
        cell.close();
        cell.certain();
        cell.begin(8);
        assert_eq!(term(&cell).over(7), Some(OwnershipLost::Closed));
        let cell = TermCell::new(7);
        cell.lost(LeaseLost::Expired);
        cell.close();
        assert_eq!(
            term(&cell).over(7),
            Some(OwnershipLost::Session(LeaseLost::Expired))
        );
    }
}
