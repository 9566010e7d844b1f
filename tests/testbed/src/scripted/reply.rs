//! What a script says a call gets.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;

use super::stream::{Receiver, Sender};

/// Which streams a GOAWAY says were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GoAway {
    /// All before this call: the client may be sure that this one was not processed.
    ExcludeThis,
    /// This call as well.
    IncludeThis,
    /// Up to this stream.
    LastId(u32),
}

type Conversation =
    Box<dyn FnOnce(Sender, Receiver) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

pub(super) enum Kind {
    Message(Bytes),
    Status(u32, String),
    Http(u16),
    Hang,
    Reset { reason: Reason, headers: bool },
    End { reset: bool },
    Streaming(Conversation),
}

/// What a call gets.
#[must_use = "a script returns it"]
pub struct Reply {
    pub(super) kind: Kind,
    pub(super) delay: Duration,
    pub(super) headers: Vec<(String, String)>,
    pub(super) trailers: Vec<(String, String)>,
    pub(super) go_away: Option<(GoAway, Reason)>,
}

impl Reply {
    /// One message, and status OK.
    pub fn message(message: &impl prost::Message) -> Self {
        Self::bytes(message.encode_to_vec())
    }

    /// One message that is encoded already (without the prefix of five bytes), and status OK.
    pub fn bytes(message: impl Into<Bytes>) -> Self {
        Self::new(Kind::Message(message.into()))
    }

    /// No message, and this status.
    pub fn status(code: u32, message: &str) -> Self {
        Self::new(Kind::Status(code, message.to_owned()))
    }

    /// An HTTP status and no gRPC at all, as a proxy or another server would send.
    pub fn http_status(status: u16) -> Self {
        Self::new(Kind::Http(status))
    }

    /// Nothing, for ever.
    pub fn hang() -> Self {
        Self::new(Kind::Hang)
    }

    /// `RST_STREAM`, with no answer before it.
    pub fn reset(reason: Reason) -> Self {
        Self::new(Kind::Reset {
            reason,
            headers: false,
        })
    }

    /// `RST_STREAM` with `REFUSED_STREAM`: the server says it did not process the call.
    pub fn refuse_stream() -> Self {
        Self::reset(Reason::REFUSED_STREAM)
    }

    /// The headers of an answer, then `RST_STREAM`.
    pub fn headers_then_reset(reason: Reason) -> Self {
        Self::new(Kind::Reset {
            reason,
            headers: true,
        })
    }

    /// The connection is closed.
    pub fn close_connection() -> Self {
        Self::new(Kind::End { reset: false })
    }

    /// The connection is reset (RST).
    pub fn reset_connection() -> Self {
        Self::new(Kind::End { reset: true })
    }

    /// GOAWAY (`NO_ERROR`) and no answer; the connection stays open. To go on with an answer see
    /// [`Reply::after_go_away`].
    pub fn go_away(last: GoAway) -> Self {
        Self::hang().after_go_away(last)
    }

    /// A conversation: runs until it returns, which ends the stream with status OK unless it said otherwise.
    pub fn streaming<F>(talk: impl FnOnce(Sender, Receiver) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::new(Kind::Streaming(Box::new(move |sender, receiver| {
            Box::pin(talk(sender, receiver))
        })))
    }

    /// The same, this much later.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// With one more entry in the trailers, such as `grpc-retry-pushback-ms`.
    pub fn with_trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With one more entry in the headers.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, after a GOAWAY (`NO_ERROR`).
    pub fn after_go_away(self, last: GoAway) -> Self {
        self.after_go_away_with_reason(last, Reason::NO_ERROR)
    }

    /// The same, after a GOAWAY with this reason.
    pub fn after_go_away_with_reason(mut self, last: GoAway, reason: Reason) -> Self {
        self.go_away = Some((last, reason));
        self
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            delay: Duration::ZERO,
            headers: Vec::new(),
            trailers: Vec::new(),
            go_away: None,
        }
    }
}
