//! Calls with a stream of messages in both directions.

use std::{future::poll_fn, marker::PhantomData, ops::Range, pin::Pin};

use bytes::Bytes;
use h2::client::ResponseFuture;
use prost::Message;

use super::{Channel, Metadata, StreamSlot, StreamUse};
use crate::{
    error::{Error, ErrorKind, Outcome},
    transport::grpc::{self, MessageReader, RpcFailure},
};

impl Channel {
    /// Opens a long-lived stream. The first read waits for the response headers. Fails with
    /// [`ErrorKind::TooManyRequests`] if the member allows no more of them.
    pub(crate) fn stream<Req: Message, Res: Message + Default>(
        &self,
        path: &'static str,
        metadata: &Metadata,
    ) -> Result<(StreamSender<Req>, StreamReceiver<Res>), Error> {
        let slot = self
            .try_slot(StreamUse::LongLived)
            .ok_or_else(|| self.no_slot())?;
        let (response, request) = self.start(path, metadata)?;
        let sender = StreamSender {
            request,
            channel: self.clone(),
            message: PhantomData,
        };
        let receiver = StreamReceiver {
            state: ReceiveState::AwaitingHeaders(response),
            channel: self.clone(),
            oversized_start: Bytes::new(),
            _slot: slot,
            message: PhantomData,
        };
        Ok((sender, receiver))
    }

    /// Returns the error of a long-lived stream that the member does not allow.
    fn no_slot(&self) -> Error {
        let limit = self.stream_limit().unwrap_or(0);
        let reason = format!(
            "the connection allows {limit} concurrent streams, and none is free for another \
             long-lived stream"
        );
        self.with_endpoint(Error::new(
            ErrorKind::TooManyRequests,
            Outcome::NotSent,
            reason,
        ))
    }
}

/// The sending half of a stream. Dropping it resets the stream, unless [`finish`](Self::finish) was called.
pub(crate) struct StreamSender<Req> {
    request: h2::SendStream<Bytes>,
    channel: Channel,
    message: PhantomData<fn(Req)>,
}

impl<Req: Message> StreamSender<Req> {
    /// Queues a message. h2 writes it when the member's flow control allows.
    pub(crate) fn send(&mut self, message: &Req) -> Result<(), Error> {
        self.send_body(grpc::encode(message)?)
    }

    /// Queues messages as one buffer, which needs fewer frames than single sends.
    pub(crate) fn send_all(&mut self, messages: &[Req]) -> Result<(), Error> {
        self.send_body(grpc::encode_all(messages)?)
    }

    fn send_body(&mut self, body: Bytes) -> Result<(), Error> {
        self.request
            .send_data(body, false)
            .map_err(|error| self.channel.lost_in_flight(error))
    }

    /// Ends the sending half. The member can still send.
    pub(crate) fn finish(mut self) {
        // Fails only for a stream that has ended already.
        let _ = self.request.send_data(Bytes::new(), true);
    }
}

enum ReceiveState {
    AwaitingHeaders(ResponseFuture),
    Reading(MessageReader),
    Ended,
}

/// The receiving half of a stream.
pub(crate) struct StreamReceiver<Res> {
    state: ReceiveState,
    channel: Channel,
    /// First bytes of the message that ended the stream because of its size.
    oversized_start: Bytes,
    _slot: StreamSlot,
    message: PhantomData<fn() -> Res>,
}

impl<Res: Message + Default> StreamReceiver<Res> {
    /// Returns the next message; `None` if the member ended the stream with OK, and after an error.
    pub(crate) async fn next(&mut self) -> Result<Option<Res>, RpcFailure> {
        match self.next_encoded().await? {
            Some(message) => self.decode(message).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the next message in encoded form, for [`decode`](Self::decode) or the caller's own decoder.
    pub(crate) async fn next_encoded(&mut self) -> Result<Option<Bytes>, RpcFailure> {
        let read = self.read().await;
        if !matches!(read, Ok(Some(_))) {
            self.state = ReceiveState::Ended;
        }
        read
    }

    /// Returns the next message without taking it, if it has arrived in one frame: the frame and the range of the
    /// message in it. Call [`consume`](Self::consume) to continue with the following message.
    pub(crate) fn peek(&self) -> Option<(&Bytes, Range<usize>)> {
        match &self.state {
            ReceiveState::Reading(reader) => reader.peek(),
            ReceiveState::AwaitingHeaders(_) | ReceiveState::Ended => None,
        }
    }

    /// Marks the first `amount` bytes of the frame returned by [`peek`](Self::peek) as read.
    pub(crate) fn consume(&mut self, amount: usize) {
        if let ReceiveState::Reading(reader) = &mut self.state {
            reader.consume(amount);
        }
    }

    /// Decodes a message. A failure ends the stream.
    pub(crate) fn decode(&mut self, message: Bytes) -> Result<Res, RpcFailure> {
        grpc::decode(message).map_err(|error| {
            self.state = ReceiveState::Ended;
            self.channel.with_endpoint(error).into()
        })
    }

    /// Returns the first bytes of the message that ended the stream because of its size.
    pub(crate) fn oversized_start(&self) -> &Bytes {
        &self.oversized_start
    }

    async fn read(&mut self) -> Result<Option<Bytes>, RpcFailure> {
        if let ReceiveState::AwaitingHeaders(response) = &mut self.state {
            let response = poll_fn(|cx| Pin::new(&mut *response).poll(cx))
                .await
                .map_err(|error| self.channel.lost_in_flight(error))?;
            self.state = ReceiveState::Reading(self.channel.reader(response)?);
        }
        let ReceiveState::Reading(reader) = &mut self.state else {
            return Ok(None);
        };
        match reader.next().await {
            Ok(Some(message)) => Ok(Some(message)),
            Ok(None) => match reader.status().await {
                Ok(Ok(())) => Ok(None),
                Ok(Err(failure)) => Err(self.channel.failure_with_endpoint(failure)),
                Err(error) => Err(self.channel.read_failed(error).into()),
            },
            Err(error) => {
                self.oversized_start = reader.message_start();
                Err(self.channel.read_failed(error).into())
            }
        }
    }
}
