//! Reads the messages and the final status of one response.
//!
//! A message that arrived in one DATA frame is decoded in place, without a copy. The response of a unary call that spans
//! several frames is decoded while it arrives.

use std::{
    future::poll_fn,
    ops::Range,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use prost::Message;

use super::{
    framing::{PREFIX, decode, prefixed_length},
    incremental_decoder::IncrementalDecoder,
    protocol_error,
    status::{RpcFailure, find_status, missing_status},
};
use crate::error::{Error, ErrorKind, Outcome};

/// Number of bytes at the start of an oversized message that are returned. They contain the id of a watch.
const MESSAGE_START: usize = 64;
/// Largest buffer reserved in advance, because the length in a prefix can be wrong.
const MAX_RESERVED: usize = 4 << 20;
/// Number of bytes that are decoded before the other tasks of the thread run: less than a millisecond.
const DECODED_AT_ONCE: usize = 256 << 10;

/// Reads the messages of one response.
pub(crate) struct MessageReader {
    stream: RecvStream,
    max_message_size: usize,
    /// Unread bytes of the last DATA frame.
    frame: Bytes,
    /// Bytes of a message that spans several frames. While in use, `frame` is empty.
    partial: BytesMut,
    /// Whether the headers carried the status OK, so that no trailers follow.
    ok_in_headers: bool,
}

impl MessageReader {
    pub(crate) fn new(stream: RecvStream, max_message_size: usize, ok_in_headers: bool) -> Self {
        Self {
            stream,
            max_message_size,
            frame: Bytes::new(),
            partial: BytesMut::new(),
            ok_in_headers,
        }
    }

    /// Returns the next message, or `None` at the end of the data.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Decodes the next message. Returns `None` at the end of the data. A message of several frames is decoded while it
    /// arrives, in short steps, so that it delays the other tasks of its thread by less than a millisecond.
    pub(crate) async fn decode_next<M: Message + Default + 'static>(
        &mut self,
    ) -> Result<Option<Result<M, Error>>, ReadError> {
        let (mut decoder, mut bytes_in_step) = (None, 0);
        let mut failure = None;
        poll_fn(|cx| {
            loop {
                match &mut decoder {
                    None => {
                        if let Some(message) = self.take()? {
                            return Poll::Ready(Ok(Some(decode(message))));
                        }
                        // The start of a message of several frames. `take` has checked the prefix.
                        if self.partial.is_empty()
                            && let Some(length) = prefixed_length(&self.frame)
                        {
                            self.frame.advance(PREFIX);
                            decoder = Some(IncrementalDecoder::<M>::new(length));
                            continue;
                        }
                    }
                    Some(decoder) => {
                        let before = self.frame.len();
                        if failure.is_none() {
                            failure = decoder.push(&mut self.frame).err();
                        } else {
                            decoder.skip(&mut self.frame);
                        }
                        bytes_in_step += before - self.frame.len();
                        if self.frame.is_empty() {
                            // An empty slice would keep the frame's memory.
                            self.frame = Bytes::new();
                        }
                        if let Some(message) = decoder.take_complete() {
                            let message = failure.take().map_or(Ok(message), Err);
                            return Poll::Ready(Ok(Some(message)));
                        }
                        if bytes_in_step >= DECODED_AT_ONCE {
                            bytes_in_step = 0;
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                    }
                }
                if !ready!(self.poll_frame(cx, decoder.is_some()))? {
                    return Poll::Ready(Ok(None));
                }
            }
        })
        .await
    }

    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        loop {
            if let Some(message) = self.take()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if !ready!(self.poll_frame(cx, false))? {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// Receives another frame. Returns whether there was one. The end of the data is an error `inside_message`, also if
    /// bytes are unread.
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        inside_message: bool,
    ) -> Poll<Result<bool, ReadError>> {
        Poll::Ready(match ready!(self.stream.poll_data(cx)) {
            Some(Ok(chunk)) => {
                // Fails only for a closed stream; the next poll returns the reason.
                let _ = self.stream.flow_control().release_capacity(chunk.len());
                self.push(chunk);
                Ok(true)
            }
            Some(Err(error)) => Err(ReadError::Lost(error)),
            None if !inside_message && self.unread().is_empty() => Ok(false),
            None => Err(protocol_error("the response ends inside a message").into()),
        })
    }

    /// Returns the next message without taking it, if all of it has arrived in one frame and it is acceptable: the
    /// unread part of the frame and the range of the message in it. Cheaper than [`next`](Self::next), which creates
    /// and drops a reference to the frame.
    pub(crate) fn peek(&self) -> Option<(&Bytes, Range<usize>)> {
        let length = prefixed_length(&self.frame)?;
        let end = PREFIX + length;
        let acceptable =
            self.frame[0] == 0 && length <= self.max_message_size && end <= self.frame.len();
        acceptable.then_some((&self.frame, PREFIX..end))
    }

    /// Marks the first `amount` bytes of the frame returned by [`peek`](Self::peek) as read.
    pub(crate) fn consume(&mut self, amount: usize) {
        if amount == self.frame.len() {
            // An empty slice would keep the frame's memory.
            self.frame = Bytes::new();
        } else {
            self.frame.advance(amount);
        }
    }

    /// Returns the first bytes of the next message, as far as they have arrived.
    pub(crate) fn message_start(&self) -> Bytes {
        let message = self.unread().get(PREFIX..).unwrap_or_default();
        Bytes::copy_from_slice(&message[..message.len().min(MESSAGE_START)])
    }

    /// Returns the status of the call. Fails if another message precedes it.
    pub(crate) async fn status(&mut self) -> Result<Result<(), RpcFailure>, ReadError> {
        // h2 returns trailers only after all data was read.
        if self.next().await?.is_some() {
            return Err(protocol_error("the response has more than one message").into());
        }
        if self.ok_in_headers {
            return Ok(Ok(()));
        }
        match poll_fn(|cx| self.stream.poll_trailers(cx)).await {
            Ok(Some(trailers)) => {
                Ok(find_status(&trailers).unwrap_or_else(|| Err(missing_status())))
            }
            Ok(None) => Ok(Err(missing_status())),
            Err(error) => Err(ReadError::Lost(error)),
        }
    }

    fn unread(&self) -> &[u8] {
        if self.partial.is_empty() {
            &self.frame
        } else {
            &self.partial
        }
    }

    fn push(&mut self, chunk: Bytes) {
        if self.partial.is_empty() {
            if self.frame.is_empty() {
                self.frame = chunk;
                return;
            }
            let expected = prefixed_length(&self.frame)
                .map_or(0, |length| (PREFIX + length).min(MAX_RESERVED));
            self.partial
                .reserve(expected.max(self.frame.len() + chunk.len()));
            self.partial.extend_from_slice(&self.frame);
            self.frame = Bytes::new();
        }
        self.partial.extend_from_slice(&chunk);
    }

    fn take(&mut self) -> Result<Option<Bytes>, ReadError> {
        let unread = self.unread();
        let Some(length) = prefixed_length(unread) else {
            return Ok(None);
        };
        if unread[0] != 0 {
            return Err(protocol_error(
                "the response is compressed, although compression was not requested",
            )
            .into());
        }
        if length > self.max_message_size {
            return Err(ReadError::Invalid(Error::new(
                ErrorKind::ResponseTooLarge,
                Outcome::Unknown,
                format!(
                    "the response of {length} bytes exceeds `max_response_size` ({} bytes)",
                    self.max_message_size
                ),
            )));
        }
        if unread.len() < PREFIX + length {
            return Ok(None);
        }
        let mut message = if self.partial.is_empty() {
            self.frame.split_to(PREFIX + length)
        } else {
            let mut partial = std::mem::take(&mut self.partial);
            let whole = partial.split_to(PREFIX + length).freeze();
            // An empty remainder would keep the buffer's memory.
            if !partial.is_empty() {
                self.frame = partial.freeze();
            }
            whole
        };
        message.advance(PREFIX);
        Ok(Some(message))
    }
}

/// Why a response could not be read to its end.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The stream or its connection ended early.
    Lost(h2::Error),
    /// The response is malformed or too large.
    Invalid(Error),
}

impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        Self::Invalid(error)
    }
}
