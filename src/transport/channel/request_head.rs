//! The headers of a request.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, uri::PathAndQuery};

use crate::{error::Error, transport::endpoint::Endpoint};

const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("actix-etcd/", env!("CARGO_PKG_VERSION")));

// Constants, so that the names are not parsed for every request.
const HAS_LEADER: HeaderName = HeaderName::from_static("hasleader");
const TOKEN: HeaderName = HeaderName::from_static("token");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const CLIENT_API_VERSION: HeaderName = HeaderName::from_static("client-api-version");
/// Version of the API in `proto/`, as major and minor. The server counts requests by it
/// (`etcd_server_client_requests_total`).
const API_VERSION: HeaderValue = HeaderValue::from_static("3.7");
/// Largest number of headers of a request. A map with more room is slower to allocate.
const MAX_HEADERS: usize = 7;

/// Options that a request sends as headers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metadata {
    /// Whether a member without a leader fails the request at once.
    pub(crate) require_leader: bool,
    /// Authentication token.
    pub(crate) token: Option<HeaderValue>,
    /// Time after which the member stops working on the request.
    pub(crate) timeout: Option<Duration>,
}

/// Returns the head of a request to `path`.
pub(super) fn build(
    endpoint: &Endpoint,
    path: &'static str,
    metadata: &Metadata,
) -> Result<Request<()>, Error> {
    let uri = uri(endpoint, PathAndQuery::from_static(path))?;
    let mut headers = HeaderMap::with_capacity(MAX_HEADERS);
    headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
    headers.insert(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    headers.insert(http::header::USER_AGENT, USER_AGENT);
    headers.insert(CLIENT_API_VERSION, API_VERSION);
    if metadata.require_leader {
        headers.insert(HAS_LEADER, HeaderValue::from_static("true"));
    }
    if let Some(token) = &metadata.token {
        headers.insert(TOKEN, token.clone());
    }
    if let Some(timeout) = metadata.timeout {
        headers.insert(GRPC_TIMEOUT, grpc_timeout(timeout));
    }
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Replaces the address and the user agent in the head of a request from a generated client, and adds the API version
/// unless the request has one.
pub(super) fn readdress(request: &mut Request<()>, endpoint: &Endpoint) -> Result<(), Error> {
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = uri(
        endpoint,
        path.unwrap_or_else(|| PathAndQuery::from_static("/")),
    )?;
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert(http::header::USER_AGENT, USER_AGENT);
    headers.entry(CLIENT_API_VERSION).or_insert(API_VERSION);
    Ok(())
}

fn uri(endpoint: &Endpoint, path: PathAndQuery) -> Result<Uri, Error> {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(endpoint.scheme().clone());
    parts.authority = Some(endpoint.authority().clone());
    parts.path_and_query = Some(path);
    Uri::from_parts(parts)
        .map_err(|error| Error::invalid("the path of the request is not valid").with_source(error))
}

/// Returns the timeout in milliseconds. gRPC allows eight digits, enough for 27 hours; a longer timeout is shortened.
fn grpc_timeout(timeout: Duration) -> HeaderValue {
    let mut millis = timeout.as_millis().clamp(1, 99_999_999);
    let mut text = *b"00000000m";
    let mut first = text.len() - 1;
    while millis > 0 {
        first -= 1;
        text[first] = b'0' + u8::try_from(millis % 10).unwrap_or(0);
        millis /= 10;
    }
    HeaderValue::from_bytes(&text[first..])
        .unwrap_or_else(|_| HeaderValue::from_static("99999999m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeout_is_in_milliseconds_and_never_zero() {
        for (timeout, header) in [
            (Duration::ZERO, "1m"),
            (Duration::from_micros(1), "1m"),
            (Duration::from_millis(250), "250m"),
            (Duration::from_secs(5), "5000m"),
            (Duration::from_secs(99_999), "99999000m"),
            (Duration::MAX, "99999999m"),
        ] {
            assert_eq!(grpc_timeout(timeout), header, "{timeout:?}");
        }
    }
}
