//! Provides requests with tokens, and waits for new ones.

use std::{borrow::Cow, sync::Arc, time::Duration};

use actix::Recipient;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    connection::token::{RenewToken, RenewalReason, Token, TokenCell},
    error::{Error, ErrorKind, Outcome},
    retry::{RetryDecision, decision::remedy},
    runtime::backoff::Backoff,
};

/// Delay between logins that failed.
const LOGIN_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// Provides the tokens of requests.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    cell: Arc<TokenCell>,
    renewer: Option<Recipient<RenewToken>>,
}

impl Tokens {
    /// Uses the cell's token as it is; it is never renewed.
    pub(crate) fn fixed(cell: Arc<TokenCell>) -> Self {
        Self {
            cell,
            renewer: None,
        }
    }

    /// Uses the cell's token, which the actor `renewer` renews.
    pub(crate) fn renewed_by(cell: Arc<TokenCell>, renewer: Recipient<RenewToken>) -> Self {
        cell.set_renewer(&renewer);
        Self {
            cell,
            renewer: Some(renewer),
        }
    }

    /// Returns the token to send. Waits for a new one if the client has to log in.
    pub(crate) async fn current(&self, deadline: Instant) -> Result<Token, Error> {
        loop {
            let token = Token::clone(&self.cell.load());
            match &self.renewer {
                Some(actor) if self.cell.is_retired(token.generation) => {
                    renew(actor, token.generation, RenewalReason::Missing, deadline).await?;
                }
                _ => return Ok(token),
            }
        }
    }

    /// Waits for a token newer than a rejected one. Returns `false` if there can be no other token.
    pub(crate) async fn renewed(
        &self,
        rejected: &Token,
        kind: ErrorKind,
        deadline: Instant,
    ) -> Result<bool, Error> {
        match &self.renewer {
            Some(actor) => renew(
                actor,
                rejected.generation,
                RenewalReason::Rejected,
                deadline,
            )
            .await
            .map(|()| true),
            None => Ok(permissions_changed(rejected, kind)),
        }
    }

    /// Requests a token newer than a rejected one and returns at once; later requests wait for it. Returns `false` if
    /// the token was not the reason, or if there can be no other token.
    pub(crate) fn report_rejected(&self, rejected: &Token, kind: ErrorKind) -> bool {
        if remedy(kind) != RetryDecision::RenewToken {
            return false;
        }
        let Some(actor) = &self.renewer else {
            return permissions_changed(rejected, kind);
        };
        self.cell.retire(rejected.generation);
        RenewToken::request(actor, rejected.generation, RenewalReason::Rejected);
        true
    }

    /// Returns whether requests have to wait for a new token now.
    pub(crate) fn are_awaited(&self) -> bool {
        self.renewer.is_some() && self.cell.is_retired(self.cell.generation())
    }
}

/// Returns whether permissions changed while a request was in flight, for a client without a token (authenticated by
/// its certificate).
fn permissions_changed(rejected: &Token, kind: ErrorKind) -> bool {
    rejected.value.is_none() && kind == ErrorKind::AuthOldRevision
}

/// Waits for a token newer than this generation. Repeats a login that failed for a transient reason until the deadline,
/// because the login may have had the shorter deadline of another request.
async fn renew(
    actor: &Recipient<RenewToken>,
    generation: u64,
    reason: RenewalReason,
    deadline: Instant,
) -> Result<(), Error> {
    let mut backoff = LOGIN_BACKOFF.start();
    let mut last = None;
    loop {
        let (renewed, result) = oneshot::channel();
        actor.do_send(RenewToken {
            generation,
            reason,
            renewed,
        });
        match timeout_at(deadline, result).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(error))) if is_transient(&error) => {
                let delay = backoff.next_delay(0.5);
                sleep_until(deadline.min(Instant::now() + delay)).await;
                last = Some(error);
            }
            // The outcome of the login is not the outcome of the request that waits for it.
            Ok(Ok(Err(error))) => return Err(error.with_outcome(Outcome::NotSent)),
            Ok(Err(_)) if !actor.connected() => return Err(Error::shut_down()),
            // The actor crashed and restarts: send the message again.
            Ok(Err(_)) => tokio::task::yield_now().await,
            Err(_) => return Err(login_timed_out(last)),
        }
    }
}

fn is_transient(error: &Error) -> bool {
    let remedy = remedy(error.kind());
    matches!(remedy, RetryDecision::NextMember | RetryDecision::Backoff)
        || error.kind() == ErrorKind::DeadlineExceeded
}

fn login_timed_out(last: Option<Error>) -> Error {
    let error = |reason| Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, reason);
    let reason = "the login did not finish in time";
    match last {
        None => error(Cow::Borrowed(reason)),
        Some(last) => error(format!("{reason}: {}", last.brief()).into()).with_source(last),
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        connection::token::{Token, header_value},
        transport::channel::Metadata,
    };

    #[test]
    fn token_is_never_printed() {
        let value = Some(header_value("correct.horse").unwrap());
        let token = Token {
            value: value.clone(),
            generation: 1,
        };
        let metadata = Metadata {
            token: value,
            ..Metadata::default()
        };
        let printed = format!("{token:?} {metadata:?}");
        assert!(!printed.contains("horse"), "{printed}");
        let invalid = header_value("correct\nhorse").unwrap_err();
        let printed = format!("{invalid} {invalid:?}");
        assert!(!printed.contains("horse"), "{printed}");
    }
}
