//! Makes a new connection and waits until the member has responded to an RPC on it.

use std::{cell::RefCell, net::SocketAddr, time::Duration};

use tokio::time::{Instant, timeout, timeout_at};

use super::{
    ConnectionContext, EndpointId, OpenConnections,
    address_attempts::{AddressResults, try_addresses},
    cluster_id::ClusterMembership,
    cluster_identity::{ClusterIdentity, identify},
    driver_task::{DriverEvent, DriverTask},
    probe::{ProbeResult, request_status},
    token::TokenCell,
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

/// A connection on which a member of the client's cluster has responded to an RPC.
pub(super) struct FirstContact {
    /// The address that was dialled; `None` for a Unix socket.
    pub(super) address: Option<SocketAddr>,
    pub(super) channel: Channel,
    pub(super) driver: DriverTask,
    pub(super) response: ProbeResult,
    /// Time from the first request to its response.
    pub(super) round_trip: Duration,
    pub(super) token: TokenResponse,
    pub(super) membership: ClusterMembership,
}

impl FirstContact {
    /// Returns whether the connection accepts requests. The driver's events are ignored until the connection is in use,
    /// and are not sent again.
    pub(super) fn is_open(&self) -> bool {
        !self.driver.has_ended() && self.channel.accepts_requests()
    }
}

/// A connection on which a member has responded to an RPC. It has received no token.
struct AnonymousContact {
    address: Option<SocketAddr>,
    channel: Channel,
    driver: DriverTask,
    identity: ClusterIdentity,
}

/// Dials the addresses of an endpoint, performs the handshakes and waits for a first response, all within the connect
/// timeout. Records in `history` which addresses failed.
///
/// Sends the token only after the member has shown that it belongs to the client's cluster.
pub(super) async fn first_contact(
    id: EndpointId,
    endpoint: &Endpoint,
    options: &DialOptions,
    context: &ConnectionContext,
    history: &RefCell<AddressHistory>,
    on_event: impl Fn(DriverEvent) + Clone + 'static,
) -> Result<FirstContact, Error> {
    let cluster = &context.cluster;
    let trust = if cluster.is_advertised(id) {
        AddressTrust::Advertised
    } else {
        AddressTrust::User
    };
    let connections = &context.connections;
    let contact = contact_endpoint(endpoint, trust, options, connections, history, on_event).await;
    let contact = contact.inspect_err(|_| cluster.endpoint_failed(id))?;
    let admitted = cluster.admit(id, endpoint.as_str(), contact.identity.cluster);
    let membership = admitted.await.map_err(|error| {
        if let Some(address) = contact.address {
            history.borrow_mut().mark_failed(address, Instant::now());
        }
        error.with_endpoint(endpoint.name())
    })?;
    let round_trip = contact.identity.round_trip;
    let (response, token) =
        authenticated_response(&contact.channel, contact.identity, &context.token).await;
    Ok(FirstContact {
        address: contact.address,
        channel: contact.channel,
        driver: contact.driver,
        response: usable_response(endpoint, options, response)?,
        round_trip,
        token,
        membership,
    })
}

/// Returns the cluster id of the member at an advertised endpoint, or zero if it reports none. The connection is closed
/// afterwards, and no token is sent.
pub(crate) async fn cluster_at(
    endpoint: &Endpoint,
    context: &ConnectionContext,
) -> Result<u64, Error> {
    let history = RefCell::default();
    let trust = AddressTrust::Advertised;
    let (options, connections) = (&context.dial, &context.connections);
    let contact = contact_endpoint(endpoint, trust, options, connections, &history, |_| {}).await?;
    Ok(contact.identity.cluster)
}

/// Dials the addresses of an endpoint until a member has responded on one of them.
async fn contact_endpoint(
    endpoint: &Endpoint,
    trust: AddressTrust,
    options: &DialOptions,
    connections: &OpenConnections,
    history: &RefCell<AddressHistory>,
    on_event: impl Fn(DriverEvent) + Clone + 'static,
) -> Result<AnonymousContact, Error> {
    let deadline = Instant::now() + options.connect_timeout;
    let found = timeout_at(deadline, addresses(endpoint, options, history)).await;
    let mut found = found.unwrap_or_else(|_| Err(no_response(endpoint, options)))?;
    if trust == AddressTrust::Advertised {
        found.retain(|address| !address.is_link_local());
        if found.is_empty() {
            return Err(only_link_local(endpoint));
        }
    }
    let results = try_addresses(found, deadline, async |address| {
        let contact = contact_address(endpoint, &address, options, connections, on_event.clone());
        match contact.await {
            Err(error) if !endpoint.is_tls() => Err(explain_plain_failure(error, &address).await),
            result => result,
        }
    })
    .await;
    record(&results, &mut history.borrow_mut());
    let AddressResults {
        success,
        mut failed,
        silent,
    } = results;
    if let Some((_, contact)) = success {
        return Ok(contact);
    }
    let silent = silent.into_iter();
    failed.extend(silent.map(|address| (address, no_response(endpoint, options))));
    Err(all_failed(endpoint, failed))
}

/// Source of an endpoint's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressTrust {
    /// The user. Every address is allowed.
    User,
    /// A member list, which must not lead to link-local addresses.
    Advertised,
}

/// Dials one address, performs the handshakes and waits for a first response.
async fn contact_address(
    endpoint: &Endpoint,
    address: &DialAddress,
    options: &DialOptions,
    connections: &OpenConnections,
    on_event: impl Fn(DriverEvent) + 'static,
) -> Result<AnonymousContact, Error> {
    let dialled = dial(endpoint, address, options).await?;
    let monitor = dialled.channel.monitor();
    let driver = DriverTask::spawn(dialled.driver, monitor, connections.add(), on_event);
    let mut identity = identify(&dialled.channel).await;
    identity.response = usable_response(endpoint, options, identity.response)?;
    Ok(AnonymousContact {
        address: address.socket_address(),
        channel: dialled.channel,
        driver,
        identity,
    })
}

/// Fails if the connection broke before the response.
fn usable_response(
    endpoint: &Endpoint,
    options: &DialOptions,
    response: ProbeResult,
) -> Result<ProbeResult, Error> {
    match response {
        ProbeResult::Failed(error) if endpoint.is_tls() => Err(options
            .tls
            .explain_disconnect(explain_break(error))
            .with_endpoint(endpoint.name())),
        ProbeResult::Failed(error) => Err(explain_break(error)),
        response => Ok(response),
    }
}

/// Records which addresses responded and which failed, for the order of the next dial.
fn record(results: &AddressResults<DialAddress, AnonymousContact>, history: &mut AddressHistory) {
    let now = Instant::now();
    let failed = results.failed.iter().map(|(address, _)| address);
    for address in failed.chain(&results.silent) {
        if let Some(address) = address.socket_address() {
            history.mark_failed(address, now);
        }
    }
    let success = results.success.as_ref();
    if let Some(address) = success.and_then(|(address, _)| address.socket_address()) {
        history.mark_responded(address);
    }
}

fn no_response(endpoint: &Endpoint, options: &DialOptions) -> Error {
    let reason = format!("no response within {:?}", options.connect_timeout);
    Error::new(ErrorKind::MemberUnresponsive, Outcome::NotSent, reason)
        .with_endpoint(endpoint.name())
}

/// Returns the error of an endpoint whose addresses all failed. If all errors have the same kind, it has that kind.
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

/// Whether a member responded to the client's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenResponse {
    /// There is no token.
    NoToken,
    Received,
    /// The member did not respond to the token of this generation, although it responded without a token.
    Missing {
        generation: u64,
    },
}

/// Requests the status with the token. If the member does not respond to that, returns its response to the request
/// without a token.
async fn authenticated_response(
    channel: &Channel,
    identity: ClusterIdentity,
    token: &TokenCell,
) -> (ProbeResult, TokenResponse) {
    let token = token.load_without_waiting();
    if token.value.is_none() {
        return (identity.response, TokenResponse::NoToken);
    }
    let metadata = Metadata {
        require_leader: true,
        token: token.value,
        timeout: None,
    };
    let request = request_status(channel, &metadata);
    if let Ok(response) = timeout(identity.patience(), request).await {
        return (response, TokenResponse::Received);
    }
    let generation = token.generation;
    (identity.response, TokenResponse::Missing { generation })
}

fn only_link_local(endpoint: &Endpoint) -> Error {
    let reason = "the member list leads to a link-local address";
    Error::new(ErrorKind::InvalidEndpoint, Outcome::NotSent, reason).with_endpoint(endpoint.name())
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
