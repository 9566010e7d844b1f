//! A connection as a service under tonic's generated clients.
//!
//! The client's own calls do not come this way: a single message needs no boxed bodies. It is for whoever wants an
//! RPC as it is in [`proto`](crate::proto), and for streams that are used as they come.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame};
use tokio::time::Instant;
use tonic::{body::Body, codegen::Service};

use super::Client;
use crate::{
    call::tokens::Tokens,
    connection::token::Token,
    error::Error,
    transport::{channel::Channel, grpc},
};

/// The cluster as tonic's generated clients see it, made by [`Client::grpc`]: balanced over the members that are
/// ready, with the client's token, but without its retries and deadlines. A call whose token was refused fails; the
/// next one goes with a new token.
///
/// ```no_run
/// # async fn example(etcd: &actix_etcd::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use actix_etcd::proto::{maintenance_client::MaintenanceClient, AlarmRequest};
///
/// let mut maintenance = MaintenanceClient::new(etcd.grpc());
/// let alarms = maintenance.alarm(AlarmRequest::default()).await?.into_inner().alarms;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GrpcService {
    client: Client,
}

impl Client {
    /// For tonic's generated clients, which are in [`proto`](crate::proto). The size of answers is limited by them (4 MiB
    /// by tonic's default, `max_decoding_message_size` raises it), not by the client's options.
    pub fn grpc(&self) -> GrpcService {
        GrpcService {
            client: self.clone(),
        }
    }
}

impl Service<Request<Body>> for GrpcService {
    type Response = Response<ResponseBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    /// Always: a client that waited here would lose why it is not ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let client = self.client.clone();
        Box::pin(async move {
            let tokens = &client.caller().tokens;
            let deadline = Instant::now() + client.request_timeout();
            let token = tokens.current(deadline).await?;
            let connection = client.ready_connection().await?;
            let (head, body) = request.into_parts();
            let mut request = Request::from_parts(head, ());
            if let Some(value) = &token.value {
                request.headers_mut().insert("token", value.clone());
            }
            let sent_with = SentWith {
                tokens: tokens.clone(),
                token,
            };
            connection.channel.exchange(request, body, sent_with).await
        })
    }
}

/// The token that a request took along.
struct SentWith {
    tokens: Tokens,
    token: Token,
}

impl SentWith {
    /// Looks for a refusal of the token where an answer tells its status.
    fn look(&self, headers: &HeaderMap) {
        if let Some(Err(failure)) = grpc::status_of(headers) {
            self.tokens
                .report_rejected(&self.token, failure.error.kind());
        }
    }
}

impl Channel {
    async fn exchange(
        &self,
        request: Request<()>,
        mut body: Body,
        sent_with: SentWith,
    ) -> Result<Response<ResponseBody>, Error> {
        let (response, mut stream) = self.start_request(request)?;
        let id = stream.stream_id().as_u32();
        // A request of one message is sent whole at once; what waits for more goes on beside the answer.
        let done = poll_fn(|cx| match send(&mut body, &mut stream, cx) {
            Poll::Ready(sent) => Poll::Ready(Some(sent)),
            Poll::Pending => Poll::Ready(None),
        })
        .await;
        match done {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(self.broken(error, id).await),
            None => drop(tokio::spawn(async move {
                // A stream that broke tells it to whoever reads the answer.
                let _ = poll_fn(|cx| send(&mut body, &mut stream, cx)).await;
            })),
        }
        let response = match response.await {
            Ok(response) => response,
            Err(error) => return Err(self.broken(error, id).await),
        };
        sent_with.look(response.headers());
        Ok(response.map(|stream| ResponseBody {
            stream,
            data_ended: false,
            channel: self.clone(),
            sent_with,
        }))
    }
}

/// Moves a body into a stream. h2 keeps to the member's flow control; the body is asked for more only when there is room.
fn send(
    body: &mut Body,
    stream: &mut SendStream<Bytes>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    const ROOM: usize = 64 << 10;
    loop {
        if stream.capacity() == 0 {
            stream.reserve_capacity(ROOM);
            match ready!(stream.poll_capacity(cx)) {
                Some(room) => {
                    room?;
                }
                None => return Poll::Ready(Ok(())),
            }
            continue;
        }
        match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    stream.send_data(data, false)?;
                }
            }
            Some(Err(_)) => {
                stream.send_reset(h2::Reason::CANCEL);
                return Poll::Ready(Ok(()));
            }
            None => return Poll::Ready(stream.send_data(Bytes::new(), true)),
        }
    }
}

/// The body of an answer as tonic reads it.
pub struct ResponseBody {
    stream: RecvStream,
    data_ended: bool,
    channel: Channel,
    sent_with: SentWith,
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        if !this.data_ended {
            match ready!(this.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Fails only where the stream is gone, which the next poll tells better.
                    let _ = this.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => {
                    return Poll::Ready(Some(Err(this.channel.cut(error))));
                }
                None => this.data_ended = true,
            }
        }
        match ready!(this.stream.poll_trailers(cx)) {
            Ok(Some(trailers)) => {
                this.sent_with.look(&trailers);
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Ok(None) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(this.channel.cut(error)))),
        }
    }
}
