//! Provides requests with tokens, and waits for new ones.

use std::{borrow::Cow, sync::Arc, time::Duration};

use actix::Recipient;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    balancer::ReadySetCell,
    connection::{
        EndpointId, RefusalDecision,
        token::{RenewToken, RenewalReason, Token, TokenCell},
    },
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
    renewer: Option<TokenRenewer>,
}

/// Renews tokens.
#[derive(Debug, Clone)]
struct TokenRenewer {
    actor: Recipient<RenewToken>,
    /// The members that may accept a token which another member refuses.
    ready_set: Arc<ReadySetCell>,
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
    pub(crate) fn renewed_by(
        cell: Arc<TokenCell>,
        actor: Recipient<RenewToken>,
        ready_set: Arc<ReadySetCell>,
    ) -> Self {
        cell.set_renewer(&actor);
        Self {
            cell,
            renewer: Some(TokenRenewer { actor, ready_set }),
        }
    }

    /// Returns the token to send. Waits for a new one if the client has to log in.
    pub(crate) async fn current(&self, deadline: Instant) -> Result<Token, Error> {
        loop {
            let token = Token::clone(&self.cell.load());
            match &self.renewer {
                Some(TokenRenewer { actor, .. }) if self.cell.is_retired(token.generation) => {
                    // Boxed, because it is rare and would make the future of every call large.
                    let reason = RenewalReason::Missing;
                    Box::pin(renew(actor, token.generation, reason, deadline)).await?;
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
            Some(renewer) => renew(
                &renewer.actor,
                rejected.generation,
                RenewalReason::Rejected,
                deadline,
            )
            .await
            .map(|()| true),
            None => Ok(permissions_changed(rejected, kind)),
        }
    }

    /// Records that a member refused a token. Returns whether another member should receive the request with the same
    /// token: the member is at fault, not the token, and another member is ready.
    pub(crate) fn is_members_fault(
        &self,
        member: EndpointId,
        refused: &Token,
        kind: ErrorKind,
    ) -> bool {
        let Some(TokenRenewer { ready_set, .. }) = &self.renewer else {
            return false;
        };
        // The other kinds show that the users or permissions changed for all members.
        let is_unknown_token = kind == ErrorKind::InvalidAuthToken
            || kind == ErrorKind::UserEmpty && refused.value.is_some();
        if !is_unknown_token || refused.generation != self.cell.generation() {
            return false;
        }
        let set = ready_set.load();
        let connection = set.ready.iter().find(|connection| connection.id == member);
        connection.is_some_and(|connection| {
            connection.token_refused(refused) == RefusalDecision::AvoidMember
        }) && set.accepts_tokens_without(member)
    }

    /// Handles a refused token without waiting: the next request uses another member or waits for a new token. Returns
    /// `false` if the token was not the reason, or if there can be no other token.
    pub(crate) fn report_refused(
        &self,
        member: EndpointId,
        refused: &Token,
        kind: ErrorKind,
    ) -> bool {
        if remedy(kind) != RetryDecision::RenewToken {
            return false;
        }
        let Some(TokenRenewer { actor, ready_set }) = &self.renewer else {
            return permissions_changed(refused, kind);
        };
        if self.is_members_fault(member, refused, kind) {
            return true;
        }
        let set = ready_set.load();
        let connection = set.ready.iter().find(|connection| connection.id == member);
        match connection {
            // The other members may still accept the token: their requests do not wait for the login.
            Some(connection) if set.accepts_tokens_without(member) => {
                connection.avoid_during_login();
            }
            _ => self.cell.retire(refused.generation),
        }
        RenewToken::request(actor, refused.generation, RenewalReason::Rejected);
        true
    }

    /// Returns whether requests carry a token.
    pub(crate) fn are_sent(&self) -> bool {
        self.cell.has_value()
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
            through: None,
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
            issued: None,
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
