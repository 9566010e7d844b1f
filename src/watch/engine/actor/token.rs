//! A watch whose stream has a token that is not valid any more, or that would be opened with none.
//!
//! A stream keeps the token it was opened with. So the watch gets a new token, or waits for the one that others wait
//! for, and then resumes on a stream that was opened with it.

use std::{sync::Arc, time::Duration};

use actix::{AsyncContext, Context, Handler, Message};
use tokio::time::Instant;

use super::{AttachDue, Phase, WatchActor};
use crate::{
    connection::token::Token,
    error::{Code, Error, ErrorKind},
    watch::WatchEnd,
};

/// How long one attempt to get a token may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// There is a new token, or there will be none.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct TokenRenewed {
    attachment: u32,
    /// Why the last one was not good enough; `None` where no stream was opened with it.
    refused: Option<Error>,
    result: Result<bool, Error>,
}

impl WatchActor {
    pub(super) fn token_rejected(&mut self, reason: &str, ctx: &mut Context<Self>) {
        let refused = Error::from_status(Code::Unauthenticated, reason);
        if self.phase == Phase::Attached && self.spec.status_events {
            self.feed.disconnected(Arc::new(refused.clone()));
        }
        self.went_down(ctx);
        self.detach(Phase::Attaching);
        self.renew_token(Some(refused), Duration::ZERO, ctx);
    }

    pub(super) fn await_token(&mut self, ctx: &mut Context<Self>) {
        self.renew_token(None, Duration::ZERO, ctx);
    }

    fn renew_token(&mut self, refused: Option<Error>, pause: Duration, ctx: &mut Context<Self>) {
        let Some(caller) = self.caller.upgrade() else {
            return self.end(WatchEnd::Shutdown, ctx);
        };
        let (attachment, watch) = (self.attachment, ctx.address().downgrade());
        let token = Token {
            value: caller.shared.token.load().value.clone(),
            generation: self.token,
        };
        actix_rt::spawn(async move {
            tokio::time::sleep(pause).await;
            let deadline = Instant::now() + PATIENCE;
            let result = match &refused {
                Some(why) => caller.tokens.renewed(&token, why.kind(), deadline).await,
                None => caller.tokens.current(deadline).await.map(|_| true),
            };
            drop(caller);
            if let Some(watch) = watch.upgrade() {
                watch.do_send(TokenRenewed {
                    attachment,
                    refused,
                    result,
                });
            }
        });
    }
}

impl Handler<TokenRenewed> for WatchActor {
    type Result = ();

    fn handle(&mut self, renewed: TokenRenewed, ctx: &mut Context<Self>) {
        if renewed.attachment != self.attachment || self.phase != Phase::Attaching {
            return;
        }
        match (renewed.result, renewed.refused) {
            (Ok(false), Some(refused)) => self.end(WatchEnd::Refused(refused), ctx),
            (Ok(_), _) => {
                let due = AttachDue {
                    attachment: self.attachment,
                    avoid: None,
                };
                // A fresh token that is refused again must not spin.
                let pause = self.setback(1);
                ctx.notify_later(due, pause);
            }
            (Err(error), refused) => match error.kind() {
                ErrorKind::Shutdown => self.end(WatchEnd::Shutdown, ctx),
                ErrorKind::AuthFailed | ErrorKind::InvalidAuthToken => {
                    self.end(WatchEnd::Refused(error), ctx);
                }
                // Who opens it can do something about it; a watch that was open waits for them to come back.
                ErrorKind::CredentialsUnavailable if self.opened.is_some() => {
                    self.end(WatchEnd::Refused(error), ctx);
                }
                // Members may be away: a watch waits for them.
                _ => {
                    self.error = Some(Arc::new(error));
                    let pause = self.setback(1);
                    self.renew_token(refused, pause, ctx);
                }
            },
        }
    }
}
