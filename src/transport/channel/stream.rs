//! The two halves of a stream over a connection.

use std::{future::poll_fn, marker::PhantomData, ops::Range};

use bytes::Bytes;
use h2::client::ResponseFuture;
use prost::Message;

use super::{Channel, Metadata, Open};
use crate::{
    error::Error,
    transport::grpc::{self, Failure, MessageReader},
};

impl Channel {
    /// Opens a stream in both directions. The answer's head is awaited by the first read.
    pub(crate) fn stream<Q: Message, A: Message + Default>(
        &self,
        path: &'static str,
        metadata: &Metadata,
    ) -> Result<(StreamSender<Q>, StreamReceiver<A>), Error> {
        let (response, request) = self.start(path, metadata)?;
        let sender = StreamSender {
            request,
            channel: self.clone(),
            message: PhantomData,
        };
        let receiver = StreamReceiver {
            state: Answer::Awaited(response),
            channel: self.clone(),
            refused: Bytes::new(),
            _open: Open::new(&self.shared),
            message: PhantomData,
        };
        Ok((sender, receiver))
    }
}

/// The sending half of a stream. Dropping it resets the stream unless it was finished.
pub(crate) struct StreamSender<Q> {
    request: h2::SendStream<Bytes>,
    channel: Channel,
    message: PhantomData<fn(Q)>,
}

impl<Q: Message> StreamSender<Q> {
    /// Queues a message; h2 writes it as the member's flow control allows.
    pub(crate) fn send(&mut self, message: &Q) -> Result<(), Error> {
        let body = grpc::encode(message)?;
        self.request
            .send_data(body, false)
            .map_err(|error| self.channel.cut(error))
    }

    /// Queues messages in one piece: one frame where they fit, instead of one each.
    pub(crate) fn send_all(&mut self, messages: &[Q]) -> Result<(), Error> {
        let body = grpc::encode_all(messages)?;
        self.request
            .send_data(body, false)
            .map_err(|error| self.channel.cut(error))
    }

    /// Says that nothing more will come: the member ends the stream in its own time.
    pub(crate) fn finish(mut self) {
        // A stream that is already gone needs no end.
        let _ = self.request.send_data(Bytes::new(), true);
    }
}

enum Answer {
    Awaited(ResponseFuture),
    Open(MessageReader),
    Ended,
}

/// The receiving half of a stream.
pub(crate) struct StreamReceiver<A> {
    state: Answer,
    channel: Channel,
    refused: Bytes,
    _open: Open,
    message: PhantomData<fn() -> A>,
}

impl<A: Message + Default> StreamReceiver<A> {
    /// The next message; `None` when the member ended the stream with OK. After an error or the end: `None`.
    pub(crate) async fn next(&mut self) -> Result<Option<A>, Failure> {
        match self.next_encoded().await? {
            Some(message) => self.decode(message).map(Some),
            None => Ok(None),
        }
    }

    /// The same, as it came: for [`Self::decode`], or for somebody who needs less than all of it.
    pub(crate) async fn next_encoded(&mut self) -> Result<Option<Bytes>, Failure> {
        let read = self.read().await;
        if !matches!(read, Ok(Some(_))) {
            self.state = Answer::Ended;
        }
        read
    }

    /// The next message if it is there already, in one frame: the frame, and where in it the message is. It stays the next
    /// one until it is [passed](Self::pass).
    pub(crate) fn arrived(&self) -> Option<(&Bytes, Range<usize>)> {
        match &self.state {
            Answer::Open(reader) => reader.arrived(),
            Answer::Awaited(_) | Answer::Ended => None,
        }
    }

    /// Passes over what [`Self::arrived`] gave, up to its end.
    pub(crate) fn pass(&mut self, end: usize) {
        if let Answer::Open(reader) = &mut self.state {
            reader.pass(end);
        }
    }

    /// Fails if it is not the message it should be, which ends the stream.
    pub(crate) fn decode(&mut self, message: Bytes) -> Result<A, Failure> {
        grpc::decode(message).map_err(|error| {
            self.state = Answer::Ended;
            self.channel.at(error).into()
        })
    }

    /// What had arrived of a message that was too large to be taken.
    pub(crate) fn refused(&self) -> &Bytes {
        &self.refused
    }

    async fn read(&mut self) -> Result<Option<Bytes>, Failure> {
        if let Answer::Awaited(response) = &mut self.state {
            let response = poll_fn(|cx| std::pin::Pin::new(&mut *response).poll(cx))
                .await
                .map_err(|error| self.channel.cut(error))?;
            let (head, body) = response.into_parts();
            self.state = Answer::Open(self.channel.answer(&head, body)?);
        }
        let Answer::Open(reader) = &mut self.state else {
            return Ok(None);
        };
        match reader.next().await {
            Ok(Some(message)) => Ok(Some(message)),
            Ok(None) => match reader.status().await {
                Ok(Ok(())) => Ok(None),
                Ok(Err(failure)) => Err(self.channel.located(failure)),
                Err(fault) => Err(self.channel.read_fault(fault).into()),
            },
            Err(fault) => {
                self.refused = reader.beginning();
                Err(self.channel.read_fault(fault).into())
            }
        }
    }
}
