//! The actor that logs in.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, SpawnHandle, Supervised};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};
use zeroize::Zeroize;

use super::{
    Close, LoggedIn, NewToken, Provider, RenewToken, RenewalDue, TokenCell,
    credentials::{Secret, secret_body},
    flight::{Boarding, Flight},
    header_value,
    lifetime::{lifetime, next_attempt, renewal},
};
use crate::{
    api::answers,
    call::{Caller, Rpc},
    error::{Error, ErrorKind, Outcome},
    proto::{AuthenticateRequest, AuthenticateResponse},
    retry::RpcClass,
    supervisor::{crashes, supervise},
};

const AUTHENTICATE: Rpc = Rpc {
    path: "/etcdserverpb.Auth/Authenticate",
    class: RpcClass::Idempotent,
    leaderless: false,
};

answers!(AuthenticateResponse);

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
                timer: None,
                restarted: false,
            },
        )
    }

    fn take_off(&self, flight: u64, ctx: &Context<Self>) {
        let actor = ctx.address().downgrade();
        let (provider, caller, patience) =
            (self.provider.clone(), self.caller.clone(), self.patience);
        let told_lifetime = self.told_lifetime;
        tracing::debug!(flight, "logging in");
        actix_rt::spawn(async move {
            let login = log_in(&provider, &caller, patience, told_lifetime);
            let result = timeout(patience, login)
                .await
                .unwrap_or_else(|_| Err(too_slow()));
            if let Some(actor) = actor.upgrade() {
                actor.do_send(LoggedIn { flight, result });
            }
        });
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

/// The token to use from now on.
async fn log_in(
    provider: &Provider,
    caller: &Caller,
    patience: Duration,
    told_lifetime: Option<Duration>,
) -> Result<NewToken, Error> {
    let asked = Instant::now();
    let credentials = provider.give().await.map_err(|error| {
        Error::new(
            ErrorKind::CredentialsUnavailable,
            Outcome::NotSent,
            error.to_string(),
        )
    })?;
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
        .unary::<AuthenticateResponse>(AUTHENTICATE, body, patience)
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

fn too_slow() -> Error {
    Error::new(
        ErrorKind::CredentialsUnavailable,
        Outcome::NotSent,
        "they were not given in time",
    )
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
        // Timers died with the crash.
        self.timer = None;
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
        let current = self.cell.generation();
        // A caller that has given up meanwhile needs no answer.
        match self
            .flight
            .board(asked.renewed, asked.refused, current, Instant::now())
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
            }) if self.cell.holds(&value) => Err(same_again()),
            other => other,
        };
        let Some(waiting) = self
            .flight
            .land(flight, result.as_ref().err(), Instant::now())
        else {
            return;
        };
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
