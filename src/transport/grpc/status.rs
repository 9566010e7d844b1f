//! The status of a call, read from the headers or trailers of its response.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::protocol_error;
use crate::{
    error::{Error, ErrorKind, Outcome},
    retry::pushback::PUSHBACK_KEY,
};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// A failed call.
#[derive(Debug)]
pub(crate) struct RpcFailure {
    pub(crate) error: Error,
    /// Value of the server's `grpc-retry-pushback-ms` trailer.
    pub(crate) pushback: Option<HeaderValue>,
}

impl From<Error> for RpcFailure {
    fn from(error: Error) -> Self {
        Self {
            error,
            pushback: None,
        }
    }
}

/// Status of a call as known from the response headers.
#[derive(Debug)]
pub(crate) enum HeaderStatus {
    /// Messages may follow; the trailers carry the status.
    Pending,
    /// The response consists of the headers alone.
    Final(Result<(), RpcFailure>),
}

/// Returns the status of a call from the headers of its response. A response that is not gRPC is a failure.
pub(crate) fn status_from_headers(http_status: StatusCode, headers: &HeaderMap) -> HeaderStatus {
    if let Some(status) = find_status(headers) {
        return HeaderStatus::Final(status);
    }
    if http_status != StatusCode::OK {
        return HeaderStatus::Final(Err(http_failure(http_status).into()));
    }
    let content_type = headers.get(http::header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return HeaderStatus::Pending;
    }
    let failure = match content_type.and_then(|value| value.to_str().ok()) {
        Some(other) => protocol_error(&format!("the response is {other}, not gRPC")),
        None => protocol_error("the response is not gRPC"),
    };
    HeaderStatus::Final(Err(failure.into()))
}

/// Returns the error of an HTTP status without a gRPC status, which comes from a proxy and not from etcd.
///
/// gRPC maps 429, 502, 503 and 504 to `UNAVAILABLE`. None of them proves that the proxy did not forward the request: it
/// may have forwarded it, lost the response, and failed to send it again. So the outcome of a write is unknown, also
/// for 429.
fn http_failure(status: StatusCode) -> Error {
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => ErrorKind::ServerUnavailable,
        _ => ErrorKind::Protocol,
    };
    let reason = format!("the response is HTTP {status}, not gRPC");
    Error::new(kind, Outcome::Unknown, reason)
}

/// Returns the status in these headers or trailers, if they carry one.
pub(crate) fn find_status(headers: &HeaderMap) -> Option<Result<(), RpcFailure>> {
    if headers.get(&GRPC_STATUS)?.as_bytes() == b"0" {
        return Some(Ok(()));
    }
    let status = tonic::Status::from_header_map(headers)?;
    Some(Err(RpcFailure {
        error: Error::from_status(status.code().into(), status.message()),
        pushback: headers.get(PUSHBACK_KEY).cloned(),
    }))
}

pub(super) fn missing_status() -> RpcFailure {
    protocol_error("the response has no gRPC status").into()
}
