//! Replies of scripts.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;

use super::stream::{Receiver, Sender};

/// The last stream id in a GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GoAway {
    /// The stream before this call: this call was not processed.
    ExcludeThis,
    /// The stream of this call.
    IncludeThis,
    /// This stream id.
    LastId(u32),
}

type StreamHandler =
    Box<dyn FnOnce(Sender, Receiver) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

pub(super) enum ReplyKind {
    Message(Bytes),
    Status(u32, String),
    Http(u16),
    Hang,
    Reset { reason: Reason, headers: bool },
    CloseConnection { reset: bool },
    Streaming(StreamHandler),
}

/// Reply to a call.
#[must_use = "return the reply from the script"]
pub struct Reply {
    pub(super) kind: ReplyKind,
    pub(super) delay: Duration,
    pub(super) headers: Vec<(String, String)>,
    pub(super) trailers: Vec<(String, String)>,
    pub(super) go_away: Option<(GoAway, Reason)>,
}

impl Reply {
    /// One message and status OK.
    pub fn message(message: &impl prost::Message) -> Self {
        Self::bytes(message.encode_to_vec())
    }

    /// One encoded message (without the five-byte prefix) and status OK.
    pub fn bytes(message: impl Into<Bytes>) -> Self {
        Self::new(ReplyKind::Message(message.into()))
    }

    /// A status without a message.
    pub fn status(code: u32, message: &str) -> Self {
        Self::new(ReplyKind::Status(code, message.to_owned()))
    }

    /// An HTTP status without gRPC, as sent by HTTP proxies.
    pub fn http_status(status: u16) -> Self {
        Self::new(ReplyKind::Http(status))
    }

    /// No reply; the stream stays open.
    pub fn hang() -> Self {
        Self::new(ReplyKind::Hang)
    }

    /// `RST_STREAM` without headers before it.
    pub fn reset(reason: Reason) -> Self {
        Self::new(ReplyKind::Reset {
            reason,
            headers: false,
        })
    }

    /// `RST_STREAM` with `REFUSED_STREAM`: the call was not processed.
    pub fn refuse_stream() -> Self {
        Self::reset(Reason::REFUSED_STREAM)
    }

    /// Response headers, then `RST_STREAM`.
    pub fn headers_then_reset(reason: Reason) -> Self {
        Self::new(ReplyKind::Reset {
            reason,
            headers: true,
        })
    }

    /// Closes the connection.
    pub fn close_connection() -> Self {
        Self::new(ReplyKind::CloseConnection { reset: false })
    }

    /// Resets (RST) the connection.
    pub fn reset_connection() -> Self {
        Self::new(ReplyKind::CloseConnection { reset: true })
    }

    /// GOAWAY (`NO_ERROR`) without a response; the connection stays open. See [`Reply::after_go_away`] for GOAWAY
    /// with a response.
    pub fn go_away(last: GoAway) -> Self {
        Self::hang().after_go_away(last)
    }

    /// Runs `handler` on the stream. When it returns, the stream ends with status OK, unless `handler` sent another
    /// status.
    pub fn streaming<F>(handler: impl FnOnce(Sender, Receiver) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::new(ReplyKind::Streaming(Box::new(move |sender, receiver| {
            Box::pin(handler(sender, receiver))
        })))
    }

    /// Delays the reply.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Adds an entry to the trailers, such as `grpc-retry-pushback-ms`.
    pub fn with_trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an entry to the headers.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends GOAWAY (`NO_ERROR`) before the reply.
    pub fn after_go_away(self, last: GoAway) -> Self {
        self.after_go_away_with_reason(last, Reason::NO_ERROR)
    }

    /// Sends GOAWAY with a reason before the reply.
    pub fn after_go_away_with_reason(mut self, last: GoAway, reason: Reason) -> Self {
        self.go_away = Some((last, reason));
        self
    }

    fn new(kind: ReplyKind) -> Self {
        Self {
            kind,
            delay: Duration::ZERO,
            headers: Vec::new(),
            trailers: Vec::new(),
            go_away: None,
        }
    }
}
