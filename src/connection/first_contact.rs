//! Makes a new connection and waits until the member has responded to an RPC on it.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    driver_task::{DriverEvent, DriverTask},
    probe::{ProbeResult, request_status},
};
use crate::{
    error::{Error, ErrorKind, Outcome},
    transport::{
        Endpoint,
        channel::{Channel, Metadata},
        dial::{DialOptions, dial},
    },
};

/// Time without a response after which the first request is repeated without the token.
const RETRY_WITHOUT_TOKEN: Duration = Duration::from_millis(400);

/// A connection on which the member has responded to an RPC.
pub(super) struct FirstContact {
    pub(super) channel: Channel,
    pub(super) driver: DriverTask,
    pub(super) response: ProbeResult,
    /// Time from the first request to its response.
    pub(super) round_trip: Duration,
    /// Whether the member responded to a request with a token.
    pub(super) responded_to_token: bool,
    /// Whether the member responded only to the request without the token.
    pub(super) token_ignored: bool,
}

/// Dials, performs the handshakes and waits for a first response, all within the connect timeout.
pub(super) async fn first_contact(
    endpoint: &Endpoint,
    options: &DialOptions,
    metadata: &Metadata,
    on_event: impl Fn(DriverEvent) + 'static,
) -> Result<FirstContact, Error> {
    let attempt = async {
        let dialled = dial(endpoint, options).await?;
        let driver = DriverTask::spawn(dialled.driver, dialled.channel.monitor(), on_event);
        let sent_at = Instant::now();
        let (response, token_ignored) = first_response(&dialled.channel, metadata).await;
        let round_trip = sent_at.elapsed();
        match response {
            ProbeResult::Failed(error) if endpoint.is_tls() => Err(options
                .tls
                .explain_disconnect(explain_break(error))
                .with_endpoint(endpoint.name())),
            ProbeResult::Failed(error) => Err(explain_break(error)),
            response => {
                dialled.channel.store_stream_limit();
                Ok(FirstContact {
                    channel: dialled.channel,
                    driver,
                    response,
                    round_trip,
                    responded_to_token: metadata.token.is_some() && !token_ignored,
                    token_ignored,
                })
            }
        }
    };
    timeout(options.connect_timeout, attempt)
        .await
        .unwrap_or_else(|_| {
            let reason = format!("no response within {:?}", options.connect_timeout);
            let error = Error::new(ErrorKind::MemberUnresponsive, Outcome::NotSent, reason);
            Err(error.with_endpoint(endpoint.name()))
        })
}

/// Returns the first response, and whether it belongs to the request without the token. A member of another cluster may
/// never respond to a request with an unknown token, so a second request without a token is sent after [`RETRY_WITHOUT_TOKEN`].
async fn first_response(channel: &Channel, metadata: &Metadata) -> (ProbeResult, bool) {
    let mut request = std::pin::pin!(request_status(channel, metadata));
    if metadata.token.is_none() {
        return (request.await, false);
    }
    tokio::select! {
        biased;
        response = &mut request => return (response, false),
        () = sleep_until(Instant::now() + RETRY_WITHOUT_TOKEN) => {}
    }
    let without_token = Metadata {
        token: None,
        ..metadata.clone()
    };
    tokio::select! {
        biased;
        response = &mut request => (response, false),
        response = request_status(channel, &without_token) => (response, true),
    }
}

/// Adds the likely cause to the error of a connection that broke before the first response: often the port is not
/// etcd's client port.
fn explain_break(error: Error) -> Error {
    if is_http2_violation(&error) {
        let reason =
            "the endpoint does not speak HTTP/2: wrong port, or one that expects TLS (https://)";
        return replace_error(
            error,
            ErrorKind::Protocol,
            Outcome::NotSent,
            reason.to_owned(),
        );
    }
    // A port that expects TLS closes a plain connection without a message.
    let plain = error
        .endpoint()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    if !plain || error.kind() != ErrorKind::ConnectionLost {
        return error;
    }
    let reason = format!("{}; the endpoint may expect TLS (https://)", error.brief());
    let outcome = error.outcome();
    replace_error(error, ErrorKind::ConnectionLost, outcome, reason)
}

fn is_http2_violation(error: &Error) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<h2::Error>())
        .is_some_and(|error| !error.is_io() && !error.is_remote())
}

/// Returns a new error with the endpoint of `cause` and `cause` as its source.
fn replace_error(cause: Error, kind: ErrorKind, outcome: Outcome, reason: String) -> Error {
    let endpoint = cause.endpoint().map(Into::into);
    let error = Error::new(kind, outcome, reason).with_source(cause);
    match endpoint {
        Some(endpoint) => error.with_endpoint(endpoint),
        None => error,
    }
}
