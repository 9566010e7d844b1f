//! What happens between two attempts of a call: a new token, a delay, the retry budget.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use super::{CallState, Caller, MAX_TIMEOUT};
use crate::{
    connection::{EndpointId, token::Token},
    error::{Error, ErrorKind, Outcome},
    proto::rpc::Rpc,
    retry::{
        ScheduleRetry,
        budget::BudgetGrant,
        failure_log::{FailureLog, RetryPlan},
    },
};

/// Longest time that a call waits for its retry ticket after the retry is due.
const TICKET_GRACE: Duration = Duration::from_millis(250);

impl Caller {
    /// Waits until the request may be sent again.
    pub(super) async fn prepare_retry(
        &self,
        call: &CallState<'_>,
        token: &Token,
        plan: RetryPlan,
    ) -> Result<(), Error> {
        let Some(log) = &call.failures else {
            return Ok(());
        };
        if plan.renew_token && !self.is_members_fault(token, log) {
            self.renew_token(token, call.deadline, log).await?;
        }
        // A stale response is no failure, and the read is sent to few members: it does not wait for the retry budget.
        let is_stale = log.last_kind() == Some(ErrorKind::StaleRead);
        if !is_stale && (!plan.renew_token || !plan.delay.is_zero()) {
            self.wait_for_retry(call.rpc, plan.delay, call.deadline, log)
                .await?;
        }
        Ok(())
    }

    /// Returns whether to send the request to another member with the same token.
    fn is_members_fault(&self, refused: &Token, log: &FailureLog) -> bool {
        let Some((member, kind)) = log.last_failure() else {
            return false;
        };
        let has_choice = self.named_endpoint.is_none();
        let member = EndpointId(member);
        self.tokens.is_members_fault(member, refused, kind) && has_choice
    }

    /// Waits for a token newer than the rejected one. Fails with the last error if there can be none.
    async fn renew_token(
        &self,
        rejected: &Token,
        deadline: Instant,
        log: &FailureLog,
    ) -> Result<(), Error> {
        let kind = log.last_kind().unwrap_or(ErrorKind::InvalidAuthToken);
        match self.tokens.renewed(rejected, kind, deadline).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(log.clone().into_error()),
            // The renewed token was refused as well: that is the reason, not the wait for the next login.
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded && log.attempts() > 1 => {
                Err(log.clone().into_error())
            }
            Err(error) => Err(log.complete(error.with_outcome(Outcome::Rejected))),
        }
    }

    /// Waits for the next attempt: for the delay, or until a member becomes ready, and for the retry budget.
    async fn wait_for_retry(
        &self,
        rpc: Rpc,
        delay: Duration,
        deadline: Instant,
        log: &FailureLog,
    ) -> Result<(), Error> {
        let budget_delay = loop {
            match self.budget.take(Instant::now().into_std()) {
                BudgetGrant::After(delay) => break delay,
                BudgetGrant::RequestAgain(later) => {
                    if Instant::now() + later >= deadline {
                        sleep_until(deadline).await;
                        return Err(log.deadline_exceeded());
                    }
                    tokio::time::sleep(later).await;
                }
            }
        };
        let now = Instant::now();
        let not_before = now + budget_delay;
        // The backoff ends at the deadline at the latest, so that the ticket does not outlive the call.
        let due = not_before.max(deadline.min(now + delay.min(MAX_TIMEOUT)));
        if due <= now {
            return if now < deadline {
                Ok(())
            } else {
                Err(log.deadline_exceeded())
            };
        }
        tracing::debug!(
            rpc = rpc.path,
            delay = ?(due - now),
            attempts = log.attempts(),
            "retry scheduled"
        );
        let (ticket, is_due) = oneshot::channel();
        self.retries.do_send(ScheduleRetry {
            due,
            not_before,
            ticket,
        });
        if let Ok(Err(_)) = timeout_at(deadline.min(due + TICKET_GRACE), is_due).await {
            // The retry actor crashed or stopped: wait without it.
            sleep_until(due.min(deadline)).await;
        }
        if Instant::now() >= deadline {
            return Err(log.deadline_exceeded());
        }
        Ok(())
    }
}
