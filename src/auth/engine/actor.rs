//! The actor that logs in.

use std::{sync::Arc, time::Duration};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, SpawnHandle, Supervised};
use tokio::{sync::oneshot, time::Instant};

use super::{
    login::{credentials_unavailable, log_in, rejected_token_again},
    login_queue::{LoginQueue, RenewalDecision},
    messages::{AuthShutdown, LoginFinished, NewToken, RenewalDue},
    token_lifetime::{renewal_delay, retry_delay},
};
use crate::{
    auth::CredentialsProvider,
    call::Caller,
    connection::token::{LoginChannel, RenewToken, RenewalReason, TokenCell},
    error::Error,
    runtime::{
        abort_on_drop::AbortOnDrop,
        supervisor::{crashes, supervise},
    },
};

/// Response channel of a request that waits for a token.
type Waiter = oneshot::Sender<Result<(), Error>>;

/// How to log in.
#[derive(Clone)]
pub(crate) struct AuthOptions {
    pub(crate) provider: CredentialsProvider,
    pub(crate) request_timeout: Duration,
    /// Lifetime of tokens that carry no expiry.
    pub(crate) token_lifetime: Option<Duration>,
}

/// Logs in and renews tokens. See the [module](super) for its contract.
pub(crate) struct AuthActor {
    cell: Arc<TokenCell>,
    options: AuthOptions,
    /// Sends without a token.
    caller: Caller,
    /// Time at which the token in use expires, if known.
    expires_at: Option<Instant>,
    queue: LoginQueue<Waiter>,
    login_task: Option<AbortOnDrop>,
    /// The newest generation that a member rejected.
    rejected_generation: u64,
    renewal_timer: Option<SpawnHandle>,
    restarted: bool,
}

impl AuthActor {
    pub(crate) fn start(cell: Arc<TokenCell>, options: AuthOptions, caller: Caller) -> Addr<Self> {
        supervise(
            "auth",
            |_| {},
            |_| Self {
                cell,
                options,
                caller,
                expires_at: None,
                queue: LoginQueue::new(),
                login_task: None,
                rejected_generation: 0,
                renewal_timer: None,
                restarted: false,
            },
        )
    }

    fn start_login(
        &mut self,
        login: u64,
        delay: Duration,
        through: Option<LoginChannel>,
        ctx: &Context<Self>,
    ) {
        tracing::debug!(login, ?delay, "logging in");
        let actor = ctx.address().downgrade();
        let (options, caller) = (self.options.clone(), self.caller.clone());
        let task = actix_rt::spawn(async move {
            tokio::time::sleep(delay).await;
            log_in(options, caller, through).await
        });
        self.login_task = Some(task.abort_handle().into());
        actix_rt::spawn(async move {
            let result = match task.await {
                Ok(result) => result,
                Err(error) if error.is_cancelled() => return,
                // The provider is the user's code.
                Err(_) => Err(credentials_unavailable("the credentials provider panicked")),
            };
            if let Some(actor) = actor.upgrade() {
                actor.do_send(LoginFinished { login, result });
            }
        });
    }

    /// Whether a login may return the token in use again: that token was retired, but no member rejected it.
    fn may_reuse_token(&self) -> bool {
        let current = self.cell.generation();
        self.cell.is_retired(current) && self.rejected_generation < current
    }

    fn set_renewal_timer(&mut self, delay: Option<Duration>, ctx: &mut Context<Self>) {
        if let Some(timer) = self.renewal_timer.take() {
            ctx.cancel_future(timer);
        }
        let generation = self.cell.generation();
        self.renewal_timer = delay.map(|delay| ctx.notify_later(RenewalDue { generation }, delay));
    }

    fn remaining_lifetime(&self) -> Option<Duration> {
        let expires_at = self.expires_at?;
        Some(expires_at.saturating_duration_since(Instant::now()))
    }

    fn renewal_delay(&self) -> Option<Duration> {
        let remaining = self.remaining_lifetime()?;
        Some(renewal_delay(remaining, fastrand::f64()))
    }
}

impl Actor for AuthActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::take(&mut self.restarted) {
            return;
        }
        // The crash ended the timers. Its login must end, too, because another one may start.
        self.renewal_timer = None;
        self.login_task = None;
        match self.queue.restart(Instant::now()) {
            Some(login) => self.start_login(login, Duration::ZERO, None, ctx),
            None => self.set_renewal_timer(self.renewal_delay(), ctx),
        }
    }
}

impl Supervised for AuthActor {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.restarted = true;
    }
}

crashes!(AuthActor);

impl Handler<RenewToken> for AuthActor {
    type Result = ();

    fn handle(&mut self, request: RenewToken, ctx: &mut Context<Self>) {
        if request.reason == RenewalReason::Rejected {
            self.rejected_generation = self.rejected_generation.max(request.generation);
        }
        let decision = self.queue.request(
            request.renewed,
            request.generation,
            self.cell.generation(),
            Instant::now(),
        );
        // Sending fails if the request was dropped meanwhile.
        match decision {
            RenewalDecision::AlreadyRenewed(waiter) => drop(waiter.send(Ok(()))),
            RenewalDecision::RecentlyRejected(waiter, error) => drop(waiter.send(Err(error))),
            RenewalDecision::StartLogin { login, delay } => {
                self.start_login(login, delay, request.through, ctx);
            }
            RenewalDecision::Wait => {}
        }
    }
}

impl Handler<RenewalDue> for AuthActor {
    type Result = ();

    fn handle(&mut self, RenewalDue { generation }: RenewalDue, ctx: &mut Context<Self>) {
        self.renewal_timer = None;
        if generation != self.cell.generation() || self.cell.lapse(generation) {
            return;
        }
        if let Some(login) = self.queue.start_early(Instant::now()) {
            self.start_login(login, Duration::ZERO, None, ctx);
        }
    }
}

impl Handler<LoginFinished> for AuthActor {
    type Result = ();

    fn handle(&mut self, message: LoginFinished, ctx: &mut Context<Self>) {
        let LoginFinished { login, result } = message;
        let result = match result {
            Ok(NewToken {
                value: Some(value), ..
            }) if self.cell.holds(&value) && !self.may_reuse_token() => Err(rejected_token_again()),
            other => other,
        };
        let failure = result.as_ref().err();
        let Some(waiting) = self.queue.finish(login, failure, Instant::now()) else {
            return;
        };
        self.login_task = None;
        let response = match result {
            Ok(token) => {
                tracing::debug!(
                    auth_enabled = token.value.is_some(),
                    waiting = waiting.len(),
                    "logged in"
                );
                self.cell.replace(token.value);
                self.expires_at = token.expires_at;
                self.set_renewal_timer(self.renewal_delay(), ctx);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, waiting = waiting.len(), "cannot log in");
                // The token in use may still be valid. Once it is rejected, that request starts another login.
                let delay = self.remaining_lifetime().and_then(retry_delay);
                self.set_renewal_timer(delay, ctx);
                Err(error)
            }
        };
        for waiter in waiting {
            let _ = waiter.send(response.clone());
        }
    }
}

impl Handler<AuthShutdown> for AuthActor {
    type Result = ();

    fn handle(&mut self, _: AuthShutdown, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}
