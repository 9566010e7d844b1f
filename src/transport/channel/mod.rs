//! One HTTP/2 connection, used by callers on any thread. The caller's task passes each request directly to h2.
//!
//! A [`Channel`] carries three kinds of calls: [`unary`](Channel::unary), [`stream`](Channel::stream) and
//! [`raw_exchange`](Channel::raw_exchange), the service under tonic's generated clients.

mod failure;
#[cfg(test)]
mod frame_tests;
mod monitor;
mod raw_exchange;
mod request_head;
mod stream;
mod stream_slots;

use std::sync::Arc;

use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::{Request, Response};
use prost::Message;

use self::monitor::ChannelState;
use super::{
    endpoint::Endpoint,
    grpc::{self, HeaderStatus, MessageReader, RpcFailure},
    shared_connection::SharedConnection,
    wire_log::WireLog,
};
use crate::error::{Error, ErrorKind, Outcome};

pub use self::raw_exchange::ResponseBody;
pub(crate) use self::{
    failure::is_stream_error,
    monitor::{ChannelMonitor, RequestTracker},
    request_head::Metadata,
    stream::{StreamReceiver, StreamSender},
    stream_slots::{StreamSlot, StreamUse},
};

/// A handle to one HTTP/2 connection. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Channel {
    requests: SendRequest<Bytes>,
    connection: Arc<SharedConnection>,
    state: Arc<ChannelState>,
}

impl Channel {
    pub(super) fn new(
        requests: SendRequest<Bytes>,
        connection: Arc<SharedConnection>,
        monitor: ChannelMonitor,
    ) -> Self {
        Self {
            requests,
            connection,
            state: monitor.0,
        }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.state.endpoint
    }

    /// Returns a view of this channel that does not keep the connection open.
    pub(crate) fn monitor(&self) -> ChannelMonitor {
        ChannelMonitor(self.state.clone())
    }

    /// Returns the number of open requests and streams.
    pub(crate) fn open_streams(&self) -> usize {
        self.state.slots.open()
    }

    /// Returns whether the member allows another stream now.
    pub(crate) fn has_free_slot(&self, stream_use: StreamUse) -> bool {
        self.state.slots.have_room(stream_use)
    }

    /// Takes the slot of a stream, if one is free. Every stream holds one.
    pub(crate) fn try_slot(&self, stream_use: StreamUse) -> Option<StreamSlot> {
        self.state.slots.try_take(stream_use)
    }

    /// Waits for the slot of a stream, in the order of the requests. Nothing is sent meanwhile.
    pub(crate) async fn slot(&self, stream_use: StreamUse) -> StreamSlot {
        self.state.slots.take(stream_use).await
    }

    /// Returns the number of streams that the member allows at once, if it limits them.
    pub(crate) fn stream_limit(&self) -> Option<usize> {
        self.state.slots.limit()
    }

    /// Returns whether the connection accepts another request, as far as is known.
    pub(crate) fn accepts_requests(&self) -> bool {
        self.state.accepts_requests()
    }

    #[cfg(feature = "test-faults")]
    pub(crate) fn is_driven_by_callers(&self) -> bool {
        self.connection.is_driven_by_callers()
    }

    pub(crate) fn wire_log(&self) -> &WireLog {
        &self.state.wire_log
    }

    /// Sends a request and returns its response. The caller holds a [slot](Self::slot) until then. `tracker` records
    /// the progress of the request.
    pub(crate) async fn unary<M: Message + Default + 'static>(
        &self,
        path: &'static str,
        metadata: &Metadata,
        body: Bytes,
        tracker: &RequestTracker,
    ) -> Result<M, RpcFailure> {
        let head = request_head::build(&self.state.endpoint, path, metadata)?;
        let (response, stream) = self.connection.send(|| {
            let (response, mut stream) = self.send_head(head)?;
            tracker.handed_to_h2(stream.stream_id().as_u32());
            // Fails if the stream has ended already, by a GOAWAY or an early response: the response shows which.
            let _ = stream.send_data(body, true);
            Ok::<_, Error>((response, stream))
        })?;
        self.receive(response, stream.stream_id().as_u32(), tracker)
            .await
    }

    /// Returns the response to a request.
    async fn receive<M: Message + Default + 'static>(
        &self,
        response: ResponseFuture,
        stream_id: u32,
        tracker: &RequestTracker,
    ) -> Result<M, RpcFailure> {
        let response = match response.await {
            Ok(response) => response,
            // Boxed, because it is rare and would make the future of every call large.
            Err(error) => {
                let lost = Box::pin(self.request_lost(error, stream_id));
                return Err(lost.await.into());
            }
        };
        let mut reader = self.reader(response)?;
        tracker.response_arrived();
        let message = match reader.decode_next().await {
            Ok(message) => message,
            Err(error) => return Err(self.read_failed(error).into()),
        };
        match reader.status().await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return Err(self.failure_with_endpoint(failure)),
            Err(error) => return Err(self.read_failed(error).into()),
        }
        let Some(message) = message else {
            let error = grpc::protocol_error("the response has no message");
            return Err(self.with_endpoint(error).into());
        };
        message.map_err(|error| self.with_endpoint(error).into())
    }

    fn start(
        &self,
        path: &'static str,
        metadata: &Metadata,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), Error> {
        self.send_head(request_head::build(&self.state.endpoint, path, metadata)?)
    }

    /// Opens an h2 stream for a request whose body follows.
    fn send_head(
        &self,
        request: Request<()>,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), Error> {
        let mut requests = self.requests.clone();
        requests.send_request(request, false).map_err(|error| {
            self.state.close_to_requests();
            let reason = format!("the connection accepts no more requests ({error})");
            let lost = Error::new(ErrorKind::ConnectionLost, Outcome::NotSent, reason);
            self.with_endpoint(lost.with_source(error))
        })
    }

    /// Returns a reader of the response body, unless the headers carry a failure. Drops the headers, which take more
    /// memory than a small response.
    fn reader(&self, response: Response<RecvStream>) -> Result<MessageReader, RpcFailure> {
        let (head, body) = response.into_parts();
        let ok_in_headers = match grpc::status_from_headers(head.status, &head.headers) {
            HeaderStatus::Final(Err(failure)) => return Err(self.failure_with_endpoint(failure)),
            HeaderStatus::Final(Ok(())) => true,
            HeaderStatus::Pending => false,
        };
        let limit = self.state.max_response_size;
        Ok(MessageReader::new(body, limit, ok_in_headers))
    }
}
