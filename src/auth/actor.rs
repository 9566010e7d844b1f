//! The actor that logs in.

use std::{sync::Arc, time::Duration};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, Supervised};
use http::HeaderValue;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};
use zeroize::Zeroize;

use super::{
    Close, LoggedIn, Provider, RenewToken, TokenCell,
    credentials::{Secret, secret_body},
    flight::{Boarding, Flight},
    header_value,
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
    flight: Flight<Waiter>,
    restarted: bool,
}

impl AuthActor {
    pub(crate) fn start(
        cell: Arc<TokenCell>,
        provider: Provider,
        caller: Caller,
        patience: Duration,
    ) -> Addr<Self> {
        supervise(
            "auth",
            |_| {},
            |_| Self {
                cell,
                provider,
                caller,
                patience,
                flight: Flight::new(),
                restarted: false,
            },
        )
    }

    fn take_off(&self, flight: u64, ctx: &Context<Self>) {
        let actor = ctx.address().downgrade();
        let (provider, caller, patience) =
            (self.provider.clone(), self.caller.clone(), self.patience);
        tracing::debug!(flight, "logging in");
        actix_rt::spawn(async move {
            let result = timeout(patience, log_in(&provider, &caller, patience))
                .await
                .unwrap_or_else(|_| Err(too_slow()));
            if let Some(actor) = actor.upgrade() {
                actor.do_send(LoggedIn { flight, result });
            }
        });
    }
}

/// The token to use from now on; `None` where the cluster wants none.
async fn log_in(
    provider: &Provider,
    caller: &Caller,
    patience: Duration,
) -> Result<Option<HeaderValue>, Error> {
    let credentials = provider.give().await.map_err(|error| {
        Error::new(
            ErrorKind::CredentialsUnavailable,
            Outcome::NotSent,
            error.to_string(),
        )
    })?;
    let (user, password) = match &credentials.0 {
        Secret::Token(token) => return header_value(token).map(Some),
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
            let token = header_value(&answer.token);
            answer.token.zeroize();
            token.map(Some)
        }
        Err(error) if error.kind() == ErrorKind::AuthNotEnabled => Ok(None),
        Err(error) => Err(error),
    }
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
        if std::mem::take(&mut self.restarted)
            && let Some(flight) = self.flight.restart()
        {
            self.take_off(flight, ctx);
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

impl Handler<LoggedIn> for AuthActor {
    type Result = ();

    fn handle(&mut self, LoggedIn { flight, result }: LoggedIn, _: &mut Context<Self>) {
        let result = match result {
            Ok(Some(token)) if self.cell.value().as_ref() == Some(&token) => Err(same_again()),
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
                    enabled = token.is_some(),
                    waiting = waiting.len(),
                    "logged in"
                );
                self.cell.replace(token);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, waiting = waiting.len(), "cannot log in");
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
