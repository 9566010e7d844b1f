//! The requests that a script receives, and the actions that it returns.

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue};

/// A request that the proxy received.
#[derive(Clone, Debug)]
pub struct ProxiedRequest {
    /// Path, such as `/etcdserverpb.KV/Put`.
    pub path: String,
    /// Headers as the client sent them.
    pub headers: HeaderMap,
    /// Number of the client connection, from 0.
    pub connection: u64,
    /// Number of earlier requests of the same path.
    pub nth: usize,
}

/// A failure that the proxy reports instead of a response.
#[derive(Clone, Debug)]
pub struct Failure(pub(super) FailureKind);

#[derive(Clone, Debug)]
pub(super) enum FailureKind {
    Http(u16, Bytes),
    Status(u32, String),
    Reset(Reason),
}

impl Failure {
    /// An HTTP status with an HTML body and without a gRPC status, as nginx sends it.
    pub fn http(status: u16) -> Self {
        let body = format!("<html><body><h1>{status}</h1><hr>proxy</body></html>\r\n");
        Self(FailureKind::Http(status, body.into()))
    }

    /// A gRPC status, as Envoy sends it.
    pub fn status(code: u32, message: &str) -> Self {
        Self(FailureKind::Status(code, message.to_owned()))
    }

    /// `UNAVAILABLE: no healthy upstream`: the request was sent to no member.
    pub fn no_healthy_upstream() -> Self {
        Self::status(14, "no healthy upstream")
    }

    /// `RST_STREAM`.
    pub fn reset(reason: Reason) -> Self {
        Self(FailureKind::Reset(reason))
    }
}

/// What the proxy does with a request.
#[derive(Clone, Debug)]
#[must_use = "return the action from the script"]
pub struct L7Action {
    pub(super) failure: Option<Failure>,
    pub(super) forward: bool,
    pub(super) member: Option<usize>,
    pub(super) removed_headers: Vec<HeaderName>,
    pub(super) request_headers: HeaderMap,
    pub(super) response_headers: HeaderMap,
    pub(super) timeout: Option<Duration>,
    pub(super) read_timeout: Option<Duration>,
}

impl L7Action {
    /// Forwards the request to the next member in turn.
    pub fn forward() -> Self {
        Self {
            failure: None,
            forward: true,
            member: None,
            removed_headers: Vec::new(),
            request_headers: HeaderMap::new(),
            response_headers: HeaderMap::new(),
            timeout: None,
            read_timeout: None,
        }
    }

    /// Forwards the request to this member.
    pub fn forward_to(member: usize) -> Self {
        let mut action = Self::forward();
        action.member = Some(member);
        action
    }

    /// Reports a failure without forwarding the request.
    pub fn fail(failure: Failure) -> Self {
        let mut action = Self::forward();
        action.forward = false;
        action.failure = Some(failure);
        action
    }

    /// Forwards the request, waits until the member has completed the call, and reports a failure instead of its
    /// response.
    pub fn then_fail(mut self, failure: Failure) -> Self {
        self.failure = Some(failure);
        self
    }

    /// Sets a header of the forwarded request.
    pub fn with_request_header(mut self, name: &'static str, value: &str) -> Self {
        self.request_headers
            .insert(HeaderName::from_static(name), header_value(value));
        self
    }

    /// Removes a header of the forwarded request.
    pub fn without_request_header(mut self, name: &'static str) -> Self {
        self.removed_headers.push(HeaderName::from_static(name));
        self
    }

    /// Sets a header of the response.
    pub fn with_response_header(mut self, name: &'static str, value: &str) -> Self {
        self.response_headers
            .insert(HeaderName::from_static(name), header_value(value));
        self
    }

    /// Time from the request to the end of the response, after which the proxy gives up: a timeout error before the
    /// response headers, a reset after them. Default: none.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Like [`L7Action::timeout`], for the time between two frames of the member. Default: none.
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = Some(timeout);
        self
    }
}

fn header_value(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).expect("a valid header value")
}
