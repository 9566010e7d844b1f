//! The outcome of a request after a failure of h2: not sent, or unknown.
//!
//! Only guarantees of HTTP/2 and the [`WireLog`](crate::transport::wire_log::WireLog) prove that a request was not
//! sent. A status from the server does not.

use super::Channel;
use crate::{
    error::{Error, ErrorKind, Outcome},
    transport::grpc::{ReadError, RpcFailure},
};

impl Channel {
    /// Returns the error of a request that failed before its response started.
    pub(super) async fn request_lost(&self, error: h2::Error, stream_id: u32) -> Error {
        if error.is_go_away() {
            self.state.close_to_requests();
        }
        // A GOAWAY fails only the streams above its last stream id.
        let refused_by_member = error.is_remote()
            && (error.is_go_away()
                || (error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)));
        let reason = if refused_by_member {
            format!("the member closed the stream before it processed the request ({error})")
        } else if is_connection_error(&error) && self.state.wire_log.never_sent(stream_id).await {
            format!("the connection was lost before the request was sent ({error})")
        } else {
            return self.lost_in_flight(error);
        };
        let lost = Error::new(ErrorKind::ConnectionLost, Outcome::NotSent, reason);
        self.with_endpoint(lost.with_source(error))
    }

    /// Returns the error of a request or stream that the member may have processed.
    pub(super) fn lost_in_flight(&self, error: h2::Error) -> Error {
        let (kind, event) = if error.is_reset() && error.is_library() {
            (ErrorKind::Protocol, "the response is not valid HTTP/2")
        } else if error.is_reset() {
            let event = "the stream was closed while the request was in flight";
            (ErrorKind::ConnectionLost, event)
        } else {
            let event = "the connection was lost while the request was in flight";
            (ErrorKind::ConnectionLost, event)
        };
        let lost = Error::new(kind, Outcome::Unknown, format!("{event} ({error})"));
        self.with_endpoint(lost.with_source(error))
    }

    pub(super) fn read_failed(&self, error: ReadError) -> Error {
        match error {
            ReadError::Lost(error) => self.lost_in_flight(error),
            ReadError::Invalid(error) => self.with_endpoint(error),
        }
    }

    /// Adds this channel's endpoint to a failure.
    pub(super) fn failure_with_endpoint(&self, failure: RpcFailure) -> RpcFailure {
        RpcFailure {
            error: self.with_endpoint(failure.error),
            pushback: failure.pushback,
        }
    }

    /// Adds this channel's endpoint to an error.
    pub(super) fn with_endpoint(&self, error: Error) -> Error {
        error.with_endpoint(self.state.endpoint.name())
    }
}

/// Returns whether the connection has ended on this side: nothing more is written to it.
fn is_connection_error(error: &h2::Error) -> bool {
    !error.is_remote() && (error.is_io() || error.is_go_away())
}

/// Returns whether an error concerns a single stream, which was reset or had ended before a send. Its connection may
/// still work.
pub(crate) fn is_stream_error(error: &Error) -> bool {
    let source =
        std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    // An h2 error that has no reason and is not an I/O error is local: a send on a closed stream.
    source.is_some_and(|source| source.is_reset() || (source.reason().is_none() && !source.is_io()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;

    use super::*;

    #[tokio::test]
    async fn stream_errors_differ_from_connection_errors() {
        let (near, far) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut server = h2::server::handshake(far).await.unwrap();
            let (_, mut first) = server.accept().await.unwrap().unwrap();
            first.send_reset(h2::Reason::CANCEL);
            // Dropping the second request also drops the connection.
            drop(server.accept().await);
        });
        let (mut requests, connection) = h2::client::handshake(near).await.unwrap();
        tokio::spawn(connection);
        let mut start = || {
            let request = Request::get("http://member/path").body(()).unwrap();
            requests.send_request(request, false).unwrap()
        };
        let is_stream_error = |source: h2::Error| {
            let error = Error::new(ErrorKind::ConnectionLost, Outcome::Unknown, "");
            is_stream_error(&error.with_source(source))
        };
        let (response, mut stream) = start();
        assert!(is_stream_error(response.await.unwrap_err()));
        let late = stream.send_data(Bytes::new(), false);
        assert!(
            is_stream_error(late.unwrap_err()),
            "send on a closed stream"
        );
        let (response, _stream) = start();
        assert!(!is_stream_error(response.await.unwrap_err()));
    }
}
