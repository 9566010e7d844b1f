//! One login: credentials from the provider, then a token from the cluster.

use std::{
    borrow::Cow,
    collections::HashSet,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::HeaderValue;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};
use zeroize::Zeroize;

use super::{actor::AuthOptions, messages::NewToken, token_lifetime::remaining_lifetime};
use crate::{
    auth::credentials::{Secret, secret_body},
    call::Caller,
    connection::{
        foreign_cluster_error, responds_to_token,
        token::{LoginChannel, header_value},
    },
    error::{Error, ErrorKind, Outcome},
    proto::{AuthenticateRequest, AuthenticateResponse, rpc},
    request::macros::response_headers,
    transport::channel::{Channel, Metadata, RequestTracker},
};

/// Longest wait for the first response to a new token.
const FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which members that became ready meanwhile receive the new token, too.
const RECHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a member that has not responded to the new token is probed.
const TOKEN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

response_headers!(AuthenticateResponse);

/// Logs in and returns the new token, once a member has responded to it. The provider and the cluster may each take up
/// to the request timeout.
///
/// `caller` sends without a token. `through` is the channel to use; without it, any ready member.
pub(super) async fn log_in(
    options: AuthOptions,
    caller: Caller,
    through: Option<LoginChannel>,
) -> Result<NewToken, Error> {
    let token = request_token(&options, &caller, through.as_ref()).await?;
    if let Some(value) = &token.value {
        match through {
            Some(LoginChannel(channel)) => {
                if !responds_to_token(&channel, value, options.request_timeout).await {
                    let reason = "the member does not respond to the new token";
                    let kind = ErrorKind::MemberUnresponsive;
                    return Err(Error::new(kind, Outcome::NotSent, reason));
                }
            }
            None => await_first_response(&caller, value).await,
        }
    }
    Ok(token)
}

/// Sends the new token to the members as they become ready, and waits until one responds, up to
/// [`FIRST_RESPONSE_TIMEOUT`]. Requests with a token avoid members that have not responded to one.
async fn await_first_response(caller: &Caller, token: &HeaderValue) {
    let (responded, mut first_response) = mpsc::channel(1);
    let mut checked = HashSet::new();
    let deadline = Instant::now() + FIRST_RESPONSE_TIMEOUT;
    while Instant::now() < deadline {
        let set = caller.ready_set.load_full();
        for connection in set.ready.iter().cloned() {
            if connection.has_responded_to_token() {
                return;
            }
            if !checked.insert((connection.id.0, connection.generation)) {
                continue;
            }
            let (token, responded) = (token.clone(), responded.clone());
            actix_rt::spawn(async move {
                if responds_to_token(&connection.channel, &token, TOKEN_RESPONSE_TIMEOUT).await {
                    connection.record_token_response();
                    let _ = responded.try_send(());
                } else {
                    connection.request_probe();
                }
            });
        }
        let recheck = deadline.min(Instant::now() + RECHECK_INTERVAL);
        if timeout_at(recheck, first_response.recv()).await.is_ok() {
            return;
        }
    }
}

async fn request_token(
    options: &AuthOptions,
    caller: &Caller,
    through: Option<&LoginChannel>,
) -> Result<NewToken, Error> {
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
    let limit = options.request_timeout;
    let response = match through {
        None => caller.unary(rpc::AUTHENTICATE, body, limit).await,
        Some(LoginChannel(channel)) => authenticate_through(channel, caller, body, limit).await,
    };
    let response: Result<AuthenticateResponse, Error> = response;
    match response {
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

/// Logs in on this channel, without retries.
async fn authenticate_through(
    channel: &Channel,
    caller: &Caller,
    body: Bytes,
    limit: Duration,
) -> Result<AuthenticateResponse, Error> {
    let metadata = Metadata {
        require_leader: true,
        token: None,
        timeout: Some(limit),
    };
    let tracker = RequestTracker::default();
    let request = channel.unary(rpc::AUTHENTICATE.path, &metadata, body, &tracker);
    let Ok(response) = timeout(limit, request).await else {
        let reason = "the member did not respond to the login";
        let kind = ErrorKind::MemberUnresponsive;
        return Err(Error::new(kind, Outcome::Unknown, reason));
    };
    let response: AuthenticateResponse = response.map_err(|failure| failure.error)?;
    let cluster = response.header.map_or(0, |header| header.cluster_id);
    if !caller.context.cluster.accepts(cluster) {
        return Err(foreign_cluster_error(caller.context.cluster.get(), cluster));
    }
    Ok(response)
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
