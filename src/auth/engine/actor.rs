//! The actor that logs in.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, SystemTime},
};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, SpawnHandle, Supervised};
use tokio::{
    sync::oneshot,
    task::AbortHandle,
    time::{Instant, timeout},
};
use zeroize::Zeroize;

use super::{
    Close, LoggedIn, NewToken, RenewalDue,
    flight::{Boarding, Flight},
    lifetime::{lifetime, next_attempt, renewal},
};
use crate::{
    auth::{
        Provider,
        credentials::{Secret, secret_body},
    },
    call::Caller,
    connection::token::{RenewToken, RenewalReason, TokenCell, header_value},
    error::{Error, ErrorKind, Outcome},
    proto::{AuthenticateRequest, AuthenticateResponse, rpc},
    request::macros::response_headers,
    runtime::supervisor::{crashes, supervise},
};

response_headers!(AuthenticateResponse);

type Waiter = oneshot::Sender<Result<(), Error>>;

/// Gets new tokens, one login at a time.
pub(crate) struct AuthActor {
    cell: Arc<TokenCell>,
    provider: Provider,
    /// Sends without a token.
    caller: Caller,
    patience: Duration,
    /// How long tokens last that do not tell it.
    told_lifetime: Option<Duration>,
    /// When the token in use ends, where that is known.
    end: Option<Instant>,
    flight: Flight<Waiter>,
    login: Option<Login>,
    /// The newest generation that a member has refused.
    refused: u64,
    timer: Option<SpawnHandle>,
    restarted: bool,
}

impl AuthActor {
    pub(crate) fn start(
        cell: Arc<TokenCell>,
        provider: Provider,
        caller: Caller,
        patience: Duration,
        told_lifetime: Option<Duration>,
    ) -> Addr<Self> {
        supervise(
            "auth",
            |_| {},
            |_| Self {
                cell,
                provider,
                caller,
                patience,
                told_lifetime,
                end: None,
                flight: Flight::new(),
                login: None,
                refused: 0,
                timer: None,
                restarted: false,
            },
        )
    }

    fn take_off(&mut self, flight: u64, ctx: &Context<Self>) {
        let actor = ctx.address().downgrade();
        let (provider, caller) = (self.provider.clone(), self.caller.clone());
        tracing::debug!(flight, "logging in");
        let login = actix_rt::spawn(log_in(provider, caller, self.patience, self.told_lifetime));
        self.login = Some(Login(login.abort_handle()));
        actix_rt::spawn(async move {
            let result = match login.await {
                Ok(result) => result,
                Err(join) if join.is_cancelled() => return,
                // A provider is the user's own code.
                Err(_) => Err(unavailable("what gives them panicked")),
            };
            if let Some(actor) = actor.upgrade() {
                actor.do_send(LoggedIn { flight, result });
            }
        });
    }

    /// Whether the token in use went out of use though no member refused it: then it may be given again.
    fn may_come_again(&self) -> bool {
        let current = self.cell.generation();
        self.cell.is_retired(current) && self.refused < current
    }

    /// Has itself told of the end of the token in use, some time before it.
    fn watch_the_end(&mut self, wait: Option<Duration>, ctx: &mut Context<Self>) {
        if let Some(earlier) = self.timer.take() {
            ctx.cancel_future(earlier);
        }
        let generation = self.cell.generation();
        self.timer = wait.map(|wait| ctx.notify_later(RenewalDue { generation }, wait));
    }

    fn left(&self) -> Option<Duration> {
        let end = self.end?;
        Some(end.saturating_duration_since(Instant::now()))
    }
}

/// The task of a login, which ends with whoever wants to know of it.
struct Login(AbortHandle);

impl Drop for Login {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The token to use from now on. The credentials may take as long as a request, and so may the cluster.
async fn log_in(
    provider: Provider,
    caller: Caller,
    patience: Duration,
    told_lifetime: Option<Duration>,
) -> Result<NewToken, Error> {
    let asked = Instant::now();
    let credentials = match timeout(patience, async { provider.give().await }).await {
        Ok(Ok(credentials)) => credentials,
        Ok(Err(error)) => return Err(unavailable(error.to_string())),
        Err(_) => return Err(unavailable("they were not given in time")),
    };
    let (user, password) = match &credentials.0 {
        Secret::Token(token) => return new_token(token, asked, told_lifetime),
        Secret::Password { user, password } => (user, password),
    };
    let mut request = AuthenticateRequest {
        name: user.clone(),
        password: password.to_string(),
    };
    let body = secret_body(&request);
    request.password.zeroize();
    match caller
        .unary::<AuthenticateResponse>(rpc::AUTHENTICATE, body, patience)
        .await
    {
        Ok(mut answer) => {
            let token = new_token(&answer.token, asked, told_lifetime);
            answer.token.zeroize();
            token
        }
        Err(error) if error.kind() == ErrorKind::AuthNotEnabled => Ok(NewToken {
            value: None,
            end: None,
        }),
        Err(error) => Err(error),
    }
}

/// A token that was asked for then.
fn new_token(token: &str, asked: Instant, told: Option<Duration>) -> Result<NewToken, Error> {
    let since_epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let now = Instant::now();
    let left = lifetime(token, now - asked, since_epoch, told);
    let end = left.and_then(|left| now.checked_add(left));
    Ok(NewToken {
        value: Some(header_value(token)?),
        end,
    })
}

fn unavailable(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::CredentialsUnavailable, Outcome::NotSent, why)
}

fn same_again() -> Error {
    Error::new(
        ErrorKind::InvalidAuthToken,
        Outcome::Rejected,
        "the token that was given is the one that was refused",
    )
}

impl Actor for AuthActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::take(&mut self.restarted) {
            return;
        }
        // Timers died with the crash, and a login that goes on would be one beside the next.
        self.timer = None;
        self.login = None;
        match self.flight.restart() {
            Some(flight) => self.take_off(flight, ctx),
            None => self.watch_the_end(self.left().map(|left| renewal(left, fastrand::f64())), ctx),
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

    fn handle(&mut self, asked: RenewToken, ctx: &mut Context<Self>) {
        if asked.reason == RenewalReason::Rejected {
            self.refused = self.refused.max(asked.generation);
        }
        let current = self.cell.generation();
        // A caller that has given up meanwhile needs no answer.
        match self
            .flight
            .board(asked.renewed, asked.generation, current, Instant::now())
        {
            Boarding::Renewed(waiter) => drop(waiter.send(Ok(()))),
            Boarding::Refused(waiter, error) => drop(waiter.send(Err(error))),
            Boarding::Start(flight) => self.take_off(flight, ctx),
            Boarding::Wait => {}
        }
    }
}

impl Handler<RenewalDue> for AuthActor {
    type Result = ();

    fn handle(&mut self, RenewalDue { generation }: RenewalDue, ctx: &mut Context<Self>) {
        self.timer = None;
        if generation != self.cell.generation() || self.cell.lapse(generation) {
            return;
        }
        if let Some(flight) = self.flight.start_early() {
            self.take_off(flight, ctx);
        }
    }
}

impl Handler<LoggedIn> for AuthActor {
    type Result = ();

    fn handle(&mut self, LoggedIn { flight, result }: LoggedIn, ctx: &mut Context<Self>) {
        let result = match result {
            Ok(NewToken {
                value: Some(value), ..
            }) if self.cell.holds(&value) && !self.may_come_again() => Err(same_again()),
            other => other,
        };
        let Some(waiting) = self
            .flight
            .land(flight, result.as_ref().err(), Instant::now())
        else {
            return;
        };
        self.login = None;
        let told = match result {
            Ok(token) => {
                tracing::debug!(
                    enabled = token.value.is_some(),
                    waiting = waiting.len(),
                    "logged in"
                );
                self.cell.replace(token.value);
                self.end = token.end;
                let wait = self.left().map(|left| renewal(left, fastrand::f64()));
                self.watch_the_end(wait, ctx);
                Ok(())
            }
            Err(error) => {
                // The token in use may last a little longer; who is refused in the end asks for another.
                tracing::warn!(%error, waiting = waiting.len(), "cannot log in");
                self.watch_the_end(self.left().and_then(next_attempt), ctx);
                Err(error)
            }
        };
        for waiter in waiting {
            let _ = waiter.send(told.clone());
        }
    }
}

impl Handler<Close> for AuthActor {
    type Result = ();

    fn handle(&mut self, _: Close, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}
