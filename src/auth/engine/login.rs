//! One login: credentials from the provider, then a token from the cluster.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, timeout};
use zeroize::Zeroize;

use super::{actor::AuthOptions, messages::NewToken, token_lifetime::remaining_lifetime};
use crate::{
    auth::credentials::{Secret, secret_body},
    call::Caller,
    connection::token::header_value,
    error::{Error, ErrorKind, Outcome},
    proto::{AuthenticateRequest, AuthenticateResponse, rpc},
    request::macros::response_headers,
};

response_headers!(AuthenticateResponse);

/// Logs in and returns the new token. The provider and the cluster may each take up to the request timeout.
///
/// `caller` sends without a token.
pub(super) async fn log_in(options: AuthOptions, caller: Caller) -> Result<NewToken, Error> {
    let started = Instant::now();
    // Called inside the timeout, which then includes the time before the function returns its future.
    let provided = async { options.provider.provide().await };
    let credentials = match timeout(options.request_timeout, provided).await {
        Ok(Ok(credentials)) => credentials,
        Ok(Err(error)) => {
            let reason = format!("the credentials provider failed: {error}");
            return Err(credentials_unavailable(reason));
        }
        Err(_) => {
            return Err(credentials_unavailable(
                "the credentials provider did not return within the request timeout",
            ));
        }
    };
    let (user, password) = match &credentials.0 {
        Secret::Token(token) => {
            caller.context.token.set_user(None);
            return new_token(token, started, options.token_lifetime);
        }
        Secret::Password { user, password } => (user, password),
    };
    caller.context.token.set_user(Some(user.as_str()));
    let mut request = AuthenticateRequest {
        name: user.clone(),
        password: password.to_string(),
    };
    let body = secret_body(&request);
    request.password.zeroize();
    match caller
        .unary::<AuthenticateResponse>(rpc::AUTHENTICATE, body, options.request_timeout)
        .await
    {
        Ok(mut response) => {
            let token = new_token(&response.token, started, options.token_lifetime);
            response.token.zeroize();
            token
        }
        Err(error) if error.kind() == ErrorKind::AuthNotEnabled => Ok(NewToken {
            value: None,
            expires_at: None,
        }),
        Err(error) => Err(error),
    }
}

/// Returns a token that was requested at `requested_at`.
fn new_token(
    token: &str,
    requested_at: Instant,
    configured_lifetime: Option<Duration>,
) -> Result<NewToken, Error> {
    let since_epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let now = Instant::now();
    let remaining = remaining_lifetime(token, now - requested_at, since_epoch, configured_lifetime);
    Ok(NewToken {
        value: Some(header_value(token)?),
        expires_at: remaining.and_then(|remaining| now.checked_add(remaining)),
    })
}

pub(super) fn credentials_unavailable(reason: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::CredentialsUnavailable, Outcome::NotSent, reason)
}

pub(super) fn rejected_token_again() -> Error {
    Error::new(
        ErrorKind::InvalidAuthToken,
        Outcome::Rejected,
        "the new token equals the token that a member rejected",
    )
}
