//! The status of a call, read from the headers or trailers of its response.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::protocol_error;
use crate::{error::Error, retry::pushback::PUSHBACK_KEY};

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
    let failed = |reason: &str| HeaderStatus::Final(Err(protocol_error(reason).into()));
    if let Some(status) = find_status(headers) {
        return HeaderStatus::Final(status);
    }
    if http_status != StatusCode::OK {
        return failed(&format!("the response is HTTP {http_status}, not gRPC"));
    }
    let content_type = headers
        .get(http::header::CONTENT_TYPE)
        .map(HeaderValue::as_bytes);
    if content_type.is_some_and(|value| value.starts_with(b"application/grpc")) {
        HeaderStatus::Pending
    } else {
        failed("the response is not gRPC")
    }
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
