//! gRPC's framing: length-prefixed messages in, length-prefixed messages out, a status at the end.
//!
//! Written straight over h2's streams: a message that arrived in one DATA frame is decoded in place, without a copy.

use std::{
    future::poll_fn,
    ops::Range,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use prost::Message;

use crate::{
    error::{Error, ErrorKind, Outcome},
    retry::pushback::PUSHBACK_KEY,
};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const PREFIX: usize = 5;
/// Enough of a message to see what it is about.
const BEGINNING: usize = 64;
/// A buffer for a large message grows as it arrives: a length is only a claim until its bytes are here.
const GROWTH: usize = 4 << 20;

/// The status that ended a call, where it is not OK.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// What the server said of trying again (`grpc-retry-pushback-ms`), as it said it.
    pub(crate) pushback: Option<HeaderValue>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            pushback: None,
        }
    }
}

/// A message with its prefix, ready to be sent any number of times.
pub(crate) fn encode(message: &impl Message) -> Result<Bytes, Error> {
    let length = message.encoded_len();
    let claimed =
        u32::try_from(length).map_err(|_| Error::invalid("a message is limited to 4 GiB"))?;
    let mut buffer = BytesMut::with_capacity(PREFIX + length);
    buffer.put_u8(0);
    buffer.put_u32(claimed);
    message.encode_raw(&mut buffer);
    Ok(buffer.freeze())
}

/// Messages with their prefixes, one after the other.
pub(crate) fn encode_all<M: Message>(messages: &[M]) -> Result<Bytes, Error> {
    let length: usize = messages
        .iter()
        .map(|message| PREFIX + message.encoded_len())
        .sum();
    let mut buffer = BytesMut::with_capacity(length);
    for message in messages {
        let claimed = u32::try_from(message.encoded_len())
            .map_err(|_| Error::invalid("a message is limited to 4 GiB"))?;
        buffer.put_u8(0);
        buffer.put_u32(claimed);
        message.encode_raw(&mut buffer);
    }
    Ok(buffer.freeze())
}

pub(crate) fn decode<M: Message + Default>(message: Bytes) -> Result<M, Error> {
    M::decode(message).map_err(|error| {
        Error::new(
            ErrorKind::Protocol,
            Outcome::Unknown,
            "the member's answer is not the message it should be",
        )
        .with_source(error)
    })
}

/// Reads the messages of one answer.
pub(crate) struct MessageReader {
    stream: RecvStream,
    limit: usize,
    /// What arrived and was not taken yet, as it arrived.
    head: Bytes,
    /// A message that came in several pieces, being put together; meanwhile the head is empty.
    pieces: BytesMut,
    /// Whether the head said already that all is well, so that no trailers will.
    told_ok: bool,
}

impl MessageReader {
    pub(crate) fn new(stream: RecvStream, limit: usize, told_ok: bool) -> Self {
        Self {
            stream,
            limit,
            head: Bytes::new(),
            pieces: BytesMut::new(),
            told_ok,
        }
    }

    /// The next message, or `None` where the data ends.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ReadFault> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, ReadFault>> {
        loop {
            if let Some(message) = self.take()? {
                return Poll::Ready(Ok(Some(message)));
            }
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(chunk)) => {
                    // Fails only where the stream is gone, which the next poll tells better.
                    let _ = self.stream.flow_control().release_capacity(chunk.len());
                    self.push(chunk);
                }
                Some(Err(error)) => return Poll::Ready(Err(ReadFault::Broken(error))),
                None if self.head.is_empty() && self.pieces.is_empty() => {
                    return Poll::Ready(Ok(None));
                }
                None => {
                    return Poll::Ready(Err(protocol(
                        "the answer ends in the middle of a message",
                    )
                    .into()));
                }
            }
        }
    }

    /// The next message if all of it has arrived in one frame and nothing is wrong with it: what is left of the frame, and
    /// where in it the message is. To take it costs a reference to the frame and its return; this costs nothing.
    pub(crate) fn arrived(&self) -> Option<(&Bytes, Range<usize>)> {
        let length = announced(&self.head)?;
        let end = PREFIX + length;
        let fit = self.head[0] == 0 && length <= self.limit && end <= self.head.len();
        fit.then_some((&self.head, PREFIX..end))
    }

    /// Goes on after the message that ends there in the frame.
    pub(crate) fn pass(&mut self, end: usize) {
        if end == self.head.len() {
            // An empty rest would keep the frame.
            self.head = Bytes::new();
        } else {
            self.head.advance(end);
        }
    }

    /// The first bytes of the message that comes next, as far as they have arrived.
    pub(crate) fn beginning(&self) -> Bytes {
        let arrived: &[u8] = if self.pieces.is_empty() {
            &self.head
        } else {
            &self.pieces
        };
        let message = arrived.get(PREFIX..).unwrap_or_default();
        Bytes::copy_from_slice(&message[..message.len().min(BEGINNING)])
    }

    /// The trailers' verdict on the call. What stands before them is read first: h2 tells of trailers only then.
    pub(crate) async fn status(&mut self) -> Result<Result<(), Failure>, ReadFault> {
        if self.next().await?.is_some() {
            return Err(protocol("the answer has more than one message").into());
        }
        if self.told_ok {
            return Ok(Ok(()));
        }
        match poll_fn(|cx| self.stream.poll_trailers(cx)).await {
            Ok(Some(trailers)) => Ok(status_of(&trailers).unwrap_or_else(|| Err(no_status()))),
            Ok(None) => Ok(Err(no_status())),
            Err(error) => Err(ReadFault::Broken(error)),
        }
    }

    fn push(&mut self, chunk: Bytes) {
        if self.pieces.is_empty() {
            if self.head.is_empty() {
                self.head = chunk;
                return;
            }
            let announced = announced(&self.head).map_or(0, |length| (PREFIX + length).min(GROWTH));
            self.pieces
                .reserve(announced.max(self.head.len() + chunk.len()));
            self.pieces.extend_from_slice(&self.head);
            self.head = Bytes::new();
        }
        self.pieces.extend_from_slice(&chunk);
    }

    fn take(&mut self) -> Result<Option<Bytes>, ReadFault> {
        let buffered: &[u8] = if self.pieces.is_empty() {
            &self.head
        } else {
            &self.pieces
        };
        let Some(length) = announced(buffered) else {
            return Ok(None);
        };
        if buffered[0] != 0 {
            return Err(protocol("the answer is compressed, which nobody asked for").into());
        }
        if length > self.limit {
            return Err(ReadFault::Refused(Error::new(
                ErrorKind::ResponseTooLarge,
                Outcome::Unknown,
                format!(
                    "the answer has {length} bytes and the limit is {}; raise it with \
                     `max_response_size`, or read in pages",
                    self.limit
                ),
            )));
        }
        if buffered.len() < PREFIX + length {
            return Ok(None);
        }
        let mut message = if self.pieces.is_empty() {
            self.head.split_to(PREFIX + length)
        } else {
            let mut pieces = std::mem::take(&mut self.pieces);
            let whole = pieces.split_to(PREFIX + length).freeze();
            // An empty rest would keep the buffer.
            if !pieces.is_empty() {
                self.head = pieces.freeze();
            }
            whole
        };
        message.advance(PREFIX);
        Ok(Some(message))
    }
}

fn announced(buffered: &[u8]) -> Option<usize> {
    let [_, a, b, c, d] = *buffered.first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes([a, b, c, d]) as usize)
}

/// Why an answer could not be read to its end.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// The stream or its connection broke.
    Broken(h2::Error),
    /// What arrived is not acceptable.
    Refused(Error),
}

impl From<Error> for ReadFault {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// What the head of an answer says of the call.
#[derive(Debug)]
pub(crate) enum HeadVerdict {
    /// Messages may follow, and trailers tell how it ended.
    Open,
    /// This is all of it.
    Ended(Result<(), Failure>),
}

pub(crate) fn head_verdict(status: StatusCode, headers: &HeaderMap) -> HeadVerdict {
    let refused = |what: &str| HeadVerdict::Ended(Err(protocol(what).into()));
    if let Some(verdict) = status_of(headers) {
        return HeadVerdict::Ended(verdict);
    }
    if status != StatusCode::OK {
        return refused(&format!(
            "the answer is HTTP {status}, not gRPC; is this an etcd client port?"
        ));
    }
    let content = headers
        .get(http::header::CONTENT_TYPE)
        .map(HeaderValue::as_bytes);
    if content.is_some_and(|content| content.starts_with(b"application/grpc")) {
        HeadVerdict::Open
    } else {
        refused("the answer is not gRPC; is this an etcd client port?")
    }
}

/// The status of an answer, where these headers or trailers have it.
pub(crate) fn status_of(headers: &HeaderMap) -> Option<Result<(), Failure>> {
    if headers.get(&GRPC_STATUS)?.as_bytes() == b"0" {
        return Some(Ok(()));
    }
    let status = tonic::Status::from_header_map(headers)?;
    Some(Err(Failure {
        error: Error::from_status(status.code().into(), status.message()),
        pushback: headers.get(PUSHBACK_KEY).cloned(),
    }))
}

fn no_status() -> Failure {
    protocol("the answer ends without a status").into()
}

pub(crate) fn protocol(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, Outcome::Unknown, what.to_owned())
}
