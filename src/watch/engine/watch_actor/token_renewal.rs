//! Gets a token for a watch whose stream's token was rejected, or that has none yet.
//!
//! A stream keeps the token it was opened with. So the watch requests a new token, or waits for one that is requested
//! already, and then resumes on a stream that is opened with that token.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context, Handler};
use tokio::time::Instant;

use super::{
    WatchActor,
    messages::{AttachDue, TokenRenewalEnded},
    watch_state::WatchState,
};
use crate::{
    connection::{EndpointId, token::Token},
    error::{Error, ErrorKind, Outcome},
    watch::{WatchEnd, engine::freshness_record::Detachment},
};

/// Time limit for one attempt to get a token.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);

/// A token that the server rejected.
pub(super) struct RejectedToken {
    generation: u64,
    error: Error,
}

impl WatchActor {
    pub(super) fn token_rejected(
        &mut self,
        endpoint: EndpointId,
        error: Error,
        ctx: &mut Context<Self>,
    ) {
        if self.state.is_attached() {
            self.report_disconnected(Arc::new(error.clone()));
        }
        let generation = self.state.token_generation().unwrap_or(0);
        self.detach(Detachment::Reconnecting);
        let Some(caller) = self.caller.upgrade() else {
            return self.end(WatchEnd::Shutdown, ctx);
        };
        let token = Token::clone(&caller.context.token.load());
        if token.generation == generation
            && caller
                .tokens
                .is_members_fault(endpoint, &token, error.kind())
        {
            return self.attach_later(Some(endpoint), ctx);
        }
        let rejected = RejectedToken { generation, error };
        self.renew_token(Some(rejected), Duration::ZERO, ctx);
    }

    /// Requests a stream after a delay, which prevents a busy loop if the token is rejected again.
    fn attach_later(&mut self, avoid: Option<EndpointId>, ctx: &mut Context<Self>) {
        self.interrupt(ctx, |gap| WatchState::BackingOff { gap });
        let due = AttachDue {
            attempt: self.attempt,
            avoid,
        };
        let delay = self.next_delay(1);
        ctx.notify_later(due, delay);
    }

    /// Gets a token after `delay`: a new one in place of the `rejected` one, or else the first one.
    pub(super) fn renew_token(
        &mut self,
        rejected: Option<RejectedToken>,
        delay: Duration,
        ctx: &mut Context<Self>,
    ) {
        self.interrupt(ctx, |gap| WatchState::AwaitingToken { gap });
        let Some(caller) = self.caller.upgrade() else {
            return self.end(WatchEnd::Shutdown, ctx);
        };
        let (attempt, watch) = (self.attempt, ctx.address().downgrade());
        let token = Token::clone(&caller.context.token.load());
        actix_rt::spawn(async move {
            tokio::time::sleep(delay).await;
            let deadline = Instant::now() + RENEWAL_TIMEOUT;
            let result = match &rejected {
                Some(RejectedToken { generation, error }) => {
                    let token = Token {
                        generation: *generation,
                        ..token
                    };
                    caller.tokens.renewed(&token, error.kind(), deadline).await
                }
                None => caller.tokens.current(deadline).await.map(|_| true),
            };
            drop(caller);
            if let Some(watch) = watch.upgrade() {
                watch.do_send(TokenRenewalEnded {
                    attempt,
                    rejected,
                    result,
                });
            }
        });
    }
}

impl Handler<TokenRenewalEnded> for WatchActor {
    type Result = ();

    fn handle(&mut self, renewal: TokenRenewalEnded, ctx: &mut Context<Self>) {
        let is_waiting = matches!(self.state, WatchState::AwaitingToken { .. });
        if renewal.attempt != self.attempt || !is_waiting {
            return;
        }
        match (renewal.result, renewal.rejected) {
            (Ok(false), Some(rejected)) => self.end(WatchEnd::Refused(rejected.error), ctx),
            (Ok(_), _) => self.attach_later(None, ctx),
            (Err(error), rejected) => match error.kind() {
                ErrorKind::Shutdown => self.end(WatchEnd::Shutdown, ctx),
                ErrorKind::AuthFailed | ErrorKind::InvalidAuthToken => {
                    self.end(WatchEnd::Refused(error), ctx);
                }
                // The caller that opens the watch can react; a watch that was open waits for the credentials.
                ErrorKind::CredentialsUnavailable if self.state.is_opening() => {
                    self.end(WatchEnd::Refused(error), ctx);
                }
                // No member may be reachable: the watch waits for one.
                _ => {
                    let error = error.with_outcome(Outcome::NotSent);
                    self.state.record_error(Arc::new(error));
                    let delay = self.next_delay(1);
                    self.renew_token(rejected, delay, ctx);
                }
            },
        }
    }
}
