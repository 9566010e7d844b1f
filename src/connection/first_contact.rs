//! Makes a new connection and waits until the member has responded to an RPC on it.

use std::{cell::RefCell, net::SocketAddr, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    address_race::{AddressRace, race_addresses},
    driver_task::{DriverEvent, DriverTask},
    probe::{ProbeResult, request_status},
};
use crate::{
    error::{Error, ErrorKind, Outcome},
    transport::{
        Endpoint,
        address_history::AddressHistory,
        channel::{Channel, Metadata},
        dial::{DialAddress, DialOptions, addresses, dial},
        tls_detection::expects_tls,
    },
};

/// Time without a response after which the first request is repeated without the token.
const RETRY_WITHOUT_TOKEN: Duration = Duration::from_millis(400);

/// A connection on which the member has responded to an RPC.
pub(super) struct FirstContact {
    /// The address that was dialled; `None` for a Unix socket.
    pub(super) address: Option<SocketAddr>,
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

/// Dials the addresses of an endpoint, performs the handshakes and waits for a first response, all within the connect
/// timeout. Records in `history` which addresses failed.
pub(super) async fn first_contact(
    endpoint: &Endpoint,
    options: &DialOptions,
    history: &RefCell<AddressHistory>,
    metadata: &Metadata,
    on_event: impl Fn(DriverEvent) + Clone + 'static,
) -> Result<FirstContact, Error> {
    let deadline = Instant::now() + options.connect_timeout;
    let found = timeout_at(deadline, addresses(endpoint, options, history)).await;
    let found = found.unwrap_or_else(|_| Err(no_response(endpoint, options)))?;
    let race = race_addresses(found, deadline, async |address| {
        let contact = contact_address(endpoint, &address, options, metadata, on_event.clone());
        match contact.await {
            Err(error) if !endpoint.is_tls() => Err(explain_plain_failure(error, &address).await),
            result => result,
        }
    })
    .await;
    record(&race, &mut history.borrow_mut());
    let AddressRace {
        winner,
        mut failed,
        silent,
    } = race;
    if let Some((_, contact)) = winner {
        return Ok(contact);
    }
    let silent = silent.into_iter();
    failed.extend(silent.map(|address| (address, no_response(endpoint, options))));
    Err(all_failed(endpoint, failed))
}

/// Dials one address, performs the handshakes and waits for a first response.
async fn contact_address(
    endpoint: &Endpoint,
    address: &DialAddress,
    options: &DialOptions,
    metadata: &Metadata,
    on_event: impl Fn(DriverEvent) + 'static,
) -> Result<FirstContact, Error> {
    let dialled = dial(endpoint, address, options).await?;
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
                address: address.socket_address(),
                channel: dialled.channel,
                driver,
                response,
                round_trip,
                responded_to_token: metadata.token.is_some() && !token_ignored,
                token_ignored,
            })
        }
    }
}

/// Records which addresses responded and which failed, for the order of the next dial.
fn record(race: &AddressRace<DialAddress, FirstContact>, history: &mut AddressHistory) {
    let now = Instant::now();
    let failed = race.failed.iter().map(|(address, _)| address);
    for address in failed.chain(&race.silent) {
        if let Some(address) = address.socket_address() {
            history.mark_failed(address, now);
        }
    }
    let winner = race.winner.as_ref();
    if let Some(address) = winner.and_then(|(address, _)| address.socket_address()) {
        history.mark_responded(address);
    }
}

fn no_response(endpoint: &Endpoint, options: &DialOptions) -> Error {
    let reason = format!("no response within {:?}", options.connect_timeout);
    Error::new(ErrorKind::MemberUnresponsive, Outcome::NotSent, reason)
        .with_endpoint(endpoint.name())
}

/// Returns the error of an endpoint of which every address failed. It has the kind of their errors if that is the same
/// for all.
fn all_failed(endpoint: &Endpoint, mut failed: Vec<(DialAddress, Error)>) -> Error {
    if failed.len() == 1
        && let Some((_, error)) = failed.pop()
    {
        return error;
    }
    let mut kinds = failed.iter().map(|(_, error)| error.kind());
    let first = kinds.next().unwrap_or(ErrorKind::Unavailable);
    let kind = if kinds.all(|kind| kind == first) {
        first
    } else {
        ErrorKind::Unavailable
    };
    let reasons: Vec<String> = failed
        .iter()
        .map(|(address, error)| format!("{address}: {}", error.brief()))
        .collect();
    let reason = format!("no address responded ({})", reasons.join(", "));
    Error::new(kind, Outcome::NotSent, reason).with_endpoint(endpoint.name())
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

/// Replaces the error of a plain connection to a port that expects TLS.
async fn explain_plain_failure(error: Error, address: &DialAddress) -> Error {
    let may_expect_tls = matches!(
        error.kind(),
        ErrorKind::ConnectionLost | ErrorKind::Protocol
    );
    if !may_expect_tls || !expects_tls(address).await {
        return error;
    }
    let reason = "the server expects TLS; connect to it with https://".to_owned();
    replace_error(error, ErrorKind::TlsFailed, Outcome::NotSent, reason)
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
