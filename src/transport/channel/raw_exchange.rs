//! Calls of tonic's generated clients: requests and responses pass through as HTTP bodies.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame};
use tonic::body::Body;

use super::{Channel, StreamSlot, request_head};
use crate::{
    error::{Error, ErrorKind},
    transport::grpc,
};

/// Callback for the kind of the error status that ends a call.
type FailureObserver = Box<dyn Fn(ErrorKind) + Send + Sync>;

impl Channel {
    /// Sends a request of a generated client and returns its response. Replaces address and user agent, and adds the
    /// API version. Calls `on_failure` if the status of the call is an error, while the headers or the body are read.
    /// Keeps `guard` until the body of the response is dropped.
    pub(crate) async fn raw_exchange(
        &self,
        slot: StreamSlot,
        request: Request<Body>,
        guard: impl Send + Sync + 'static,
        on_failure: impl Fn(ErrorKind) + Send + Sync + 'static,
    ) -> Result<Response<ResponseBody>, Error> {
        let (head, mut body) = request.into_parts();
        let mut head = Request::from_parts(head, ());
        request_head::readdress(&mut head, &self.state.endpoint)?;
        let (response, mut stream) = self.send_head(head)?;
        let stream_id = stream.stream_id().as_u32();
        // The body of a unary call is complete at once. A longer one is sent while the response is read.
        let sent = poll_fn(|cx| match poll_send_body(&mut body, &mut stream, cx) {
            Poll::Ready(sent) => Poll::Ready(Some(sent)),
            Poll::Pending => Poll::Ready(None),
        })
        .await;
        match sent {
            // An error means that the stream has ended already; the response shows why.
            Some(Ok(()) | Err(_)) => {}
            None => drop(tokio::spawn(async move {
                // The reader of the response receives the error of a lost stream.
                let _ = poll_fn(|cx| poll_send_body(&mut body, &mut stream, cx)).await;
            })),
        }
        let response = match response.await {
            Ok(response) => response,
            Err(error) => return Err(self.request_lost(error, stream_id).await),
        };
        let on_failure: FailureObserver = Box::new(on_failure);
        report_failure(response.headers(), &on_failure);
        Ok(response.map(|stream| ResponseBody {
            stream,
            data_ended: false,
            channel: self.clone(),
            on_failure,
            slot: Some(slot),
            _guard: Box::new(guard),
        }))
    }
}

fn report_failure(headers: &HeaderMap, on_failure: &FailureObserver) {
    if let Some(Err(failure)) = grpc::find_status(headers) {
        on_failure(failure.error.kind());
    }
}

/// Moves a body into a stream, as fast as the member's flow control allows.
fn poll_send_body(
    body: &mut Body,
    stream: &mut SendStream<Bytes>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    const CAPACITY: usize = 64 << 10;
    loop {
        if stream.capacity() == 0 {
            stream.reserve_capacity(CAPACITY);
            match ready!(stream.poll_capacity(cx)) {
                Some(capacity) => {
                    capacity?;
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

/// The body of a response to a generated client.
pub struct ResponseBody {
    stream: RecvStream,
    data_ended: bool,
    channel: Channel,
    on_failure: FailureObserver,
    /// Slot of the stream; `None` once it has ended.
    slot: Option<StreamSlot>,
    _guard: Box<dyn Send + Sync>,
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
                    // Fails only for a closed stream; the next poll returns the reason.
                    let _ = this.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => {
                    return Poll::Ready(Some(Err(this.channel.lost_in_flight(error))));
                }
                None => this.data_ended = true,
            }
        }
        let trailers = ready!(this.stream.poll_trailers(cx));
        this.slot = None;
        match trailers {
            Ok(Some(trailers)) => {
                report_failure(&trailers, &this.on_failure);
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Ok(None) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(this.channel.lost_in_flight(error)))),
        }
    }
}
