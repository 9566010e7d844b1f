//! Sends and receives the messages of a stream.

use std::future::poll_fn;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The client closed the stream, or it was ended before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamClosed;

/// Sends response messages, limited by the flow control of the client.
pub struct Sender {
    stream: SendStream<Bytes>,
    trailers: Vec<(String, String)>,
    ended: bool,
}

impl Sender {
    pub(crate) fn new(stream: SendStream<Bytes>, trailers: Vec<(String, String)>) -> Self {
        Self {
            stream,
            trailers,
            ended: false,
        }
    }

    /// Sends a message.
    pub async fn send(&mut self, message: &impl prost::Message) -> Result<(), StreamClosed> {
        self.send_bytes(message.encode_to_vec()).await
    }

    /// Sends an encoded message.
    pub async fn send_bytes(&mut self, message: impl AsRef<[u8]>) -> Result<(), StreamClosed> {
        self.send_raw(framed(message.as_ref())).await
    }

    /// Sends raw bytes, such as part of a message (see [`framed`](crate::framed)).
    pub async fn send_raw(&mut self, mut bytes: Bytes) -> Result<(), StreamClosed> {
        while !bytes.is_empty() {
            if self.ended {
                return Err(StreamClosed);
            }
            self.stream.reserve_capacity(bytes.len());
            let capacity = poll_fn(|cx| self.stream.poll_capacity(cx)).await;
            let capacity = capacity.and_then(Result::ok).ok_or(StreamClosed)?;
            let chunk = bytes.split_to(capacity.min(bytes.len()));
            self.stream
                .send_data(chunk, false)
                .map_err(|_| StreamClosed)?;
        }
        Ok(())
    }

    /// Ends the stream with a status.
    pub fn status(&mut self, code: u32, message: &str) {
        if !std::mem::replace(&mut self.ended, true) {
            let _ = self
                .stream
                .send_trailers(trailers(code, message, &self.trailers));
        }
    }

    /// Ends the stream without trailers, which violates gRPC.
    pub fn end_without_status(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let _ = self.stream.send_data(Bytes::new(), true);
        }
    }

    /// Resets the stream.
    pub fn reset(&mut self, reason: Reason) {
        self.ended = true;
        self.stream.send_reset(reason);
    }

    /// Waits until the client resets the stream or the connection closes.
    pub async fn closed(&mut self) {
        let _ = poll_fn(|cx| self.stream.poll_reset(cx)).await;
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.status(0, "");
    }
}

/// Receives request messages.
pub struct Receiver {
    stream: RecvStream,
    buffer: BytesMut,
}

impl Receiver {
    pub(crate) fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            buffer: BytesMut::new(),
        }
    }

    /// Receives the next message, without its prefix. Returns `None` if the client ended or reset the stream.
    pub async fn recv(&mut self) -> Option<Bytes> {
        let message = self.peek().await?;
        self.buffer.advance(5 + message.len());
        Some(message)
    }

    /// Receives and decodes the next message.
    pub async fn recv_message<M: prost::Message + Default>(&mut self) -> Option<M> {
        let message = self.recv().await?;
        Some(
            M::decode(message)
                .unwrap_or_else(|error| panic!("cannot decode the client's message: {error}")),
        )
    }

    /// Returns the next message without consuming it.
    pub(super) async fn peek(&mut self) -> Option<Bytes> {
        loop {
            if let Some(prefix) = self.buffer.get(1..5) {
                let length = prefix
                    .iter()
                    .fold(0, |length, byte| length << 8 | usize::from(*byte));
                if let Some(message) = self.buffer.get(5..5 + length) {
                    return Some(Bytes::copy_from_slice(message));
                }
            }
            let data = self.stream.data().await?.ok()?;
            let _ = self.stream.flow_control().release_capacity(data.len());
            self.buffer.extend_from_slice(&data);
        }
    }
}

/// Encodes a gRPC message frame: uncompressed flag, length, message.
pub fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(message.len() + 5);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).expect("a message is smaller than 4 GiB"));
    bytes.put_slice(message);
    bytes.freeze()
}

/// Returns the trailers of a gRPC response.
pub(super) fn trailers(code: u32, message: &str, more: &[(String, String)]) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code));
    if !message.is_empty() {
        let text = percent_encoded(message);
        trailers.insert(
            "grpc-message",
            HeaderValue::from_str(&text).expect("percent-encoded text is ASCII"),
        );
    }
    extend(&mut trailers, more);
    trailers
}

pub(super) fn extend(headers: &mut HeaderMap, more: &[(String, String)]) {
    for (name, value) in more {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a valid metadata name");
        headers.append(
            name,
            HeaderValue::from_str(value).expect("a valid metadata value"),
        );
    }
}

fn percent_encoded(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'%' | 0..b' ' | 0x7f.. => {
                write!(encoded, "%{byte:02X}").expect("writing to a string succeeds");
            }
            plain => encoded.push(char::from(plain)),
        }
        encoded
    })
}
