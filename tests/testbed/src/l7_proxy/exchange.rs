//! One request through the proxy: runs the script, forwards the request and its response.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::time::{Instant, timeout};

use super::action::{Failure, FailureKind, L7Action, ProxiedRequest};
use super::{ErrorStyle, Shared, reached};

/// The proxy's own errors.
#[derive(Clone, Copy)]
enum ProxyError {
    NoUpstream,
    UpstreamClosed,
    Timeout,
}

impl ProxyError {
    fn failure(self, style: ErrorStyle) -> Failure {
        match (self, style) {
            (Self::NoUpstream, ErrorStyle::Envoy) => Failure::no_healthy_upstream(),
            (Self::UpstreamClosed, ErrorStyle::Envoy) => Failure::status(
                14,
                "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
            ),
            (Self::Timeout, ErrorStyle::Envoy) => Failure::status(14, "upstream request timeout"),
            (Self::NoUpstream, ErrorStyle::Nginx) => Failure::http(503),
            (Self::UpstreamClosed, ErrorStyle::Nginx) => Failure::http(502),
            (Self::Timeout, ErrorStyle::Nginx) => Failure::http(504),
        }
    }
}

pub(super) async fn exchange(
    shared: Arc<Shared>,
    connection: u64,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (head, body) = request.into_parts();
    let (action, style) = shared.decide(ProxiedRequest {
        path: head.uri.path().to_owned(),
        headers: head.headers.clone(),
        connection,
        nth: 0,
    });
    if !action.forward {
        let failure = action.failure.unwrap_or_else(Failure::no_healthy_upstream);
        return send_failure(failure, &mut respond).await;
    }
    let Some(upstream) = shared.upstreams.acquire(action.member).await else {
        return send_failure(ProxyError::NoUpstream.failure(style), &mut respond).await;
    };
    let request = rewrite(head, &action);
    forward(upstream, request, body, action, style, &mut respond).await;
}

fn rewrite(head: http::request::Parts, action: &L7Action) -> Request<()> {
    let mut request = Request::from_parts(head, ());
    let headers = request.headers_mut();
    for name in &action.removed_headers {
        headers.remove(name);
    }
    headers.extend(action.request_headers.clone());
    request
}

async fn forward(
    mut upstream: SendRequest<Bytes>,
    request: Request<()>,
    body: RecvStream,
    action: L7Action,
    style: ErrorStyle,
    respond: &mut SendResponse<Bytes>,
) {
    let Ok((response, sender)) = upstream.send_request(request, false) else {
        return send_failure(ProxyError::UpstreamClosed.failure(style), respond).await;
    };
    let deadline = action.timeout.map(|timeout| Instant::now() + timeout);
    let forward_response = async {
        let head = tokio::select! {
            head = response_head(response, &action) => head,
            // The client has cancelled the request; dropping the streams cancels it at the member.
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
            () = reached(deadline) => Err(ProxyError::Timeout),
        };
        match head {
            Ok(response) => forward_response(response, &action, deadline, respond).await,
            Err(error) => send_failure(error.failure(style), respond).await,
        }
    };
    tokio::pin!(forward_response);
    tokio::select! {
        () = &mut forward_response => {}
        // The member may respond after the end of the request, and the client may send until the response ends.
        _ = forward_body(body, sender) => forward_response.await,
    }
}

async fn response_head(
    response: ResponseFuture,
    action: &L7Action,
) -> Result<Response<RecvStream>, ProxyError> {
    let head = match action.read_timeout {
        Some(limit) => timeout(limit, response)
            .await
            .map_err(|_| ProxyError::Timeout)?,
        None => response.await,
    };
    head.map_err(|_| ProxyError::UpstreamClosed)
}

async fn forward_response(
    response: Response<RecvStream>,
    action: &L7Action,
    deadline: Option<Instant>,
    respond: &mut SendResponse<Bytes>,
) {
    let (mut head, mut body) = response.into_parts();
    if let Some(failure) = &action.failure {
        while let Some(Ok(data)) = body.data().await {
            let _ = body.flow_control().release_capacity(data.len());
        }
        return send_failure(failure.clone(), respond).await;
    }
    head.headers.extend(action.response_headers.clone());
    let ended = body.is_end_stream();
    let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), ended) else {
        return;
    };
    if ended {
        return;
    }
    let complete = tokio::select! {
        complete = forward_response_body(&mut body, &mut stream, action) => complete,
        () = reached(deadline) => Err(Reason::CANCEL),
    };
    if let Err(reason) = complete {
        stream.send_reset(reason);
    }
}

/// Forwards data and trailers of a response. Returns the reason of the reset if either side fails.
async fn forward_response_body(
    body: &mut RecvStream,
    stream: &mut SendStream<Bytes>,
    action: &L7Action,
) -> Result<(), Reason> {
    loop {
        let next = async {
            match action.read_timeout {
                Some(limit) => timeout(limit, body.data()).await,
                None => Ok(body.data().await),
            }
        };
        let data = tokio::select! {
            data = next => data.map_err(|_| Reason::CANCEL)?,
            _ = poll_fn(|cx| stream.poll_reset(cx)) => return Err(Reason::CANCEL),
        };
        let Some(data) = data else { break };
        let data = data.map_err(|_| Reason::INTERNAL_ERROR)?;
        let length = data.len();
        send_data(stream, data).await?;
        let _ = body.flow_control().release_capacity(length);
    }
    let trailers = body.trailers().await.map_err(|_| Reason::INTERNAL_ERROR)?;
    match trailers {
        Some(trailers) => stream.send_trailers(trailers),
        None => stream.send_data(Bytes::new(), true),
    }
    .map_err(|_| Reason::CANCEL)
}

/// Forwards the body of a request, until it ends or one side fails.
async fn forward_body(mut body: RecvStream, mut sender: SendStream<Bytes>) -> Result<(), Reason> {
    while let Some(data) = body.data().await {
        let data = data.map_err(|_| Reason::CANCEL)?;
        let length = data.len();
        send_data(&mut sender, data).await?;
        let _ = body.flow_control().release_capacity(length);
    }
    sender
        .send_data(Bytes::new(), true)
        .map_err(|_| Reason::CANCEL)
}

async fn send_data(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), Reason> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let capacity = poll_fn(|cx| stream.poll_capacity(cx)).await;
        let capacity = capacity.and_then(Result::ok).ok_or(Reason::CANCEL)?;
        let chunk = data.split_to(capacity.min(data.len()));
        stream.send_data(chunk, false).map_err(|_| Reason::CANCEL)?;
    }
    Ok(())
}

async fn send_failure(failure: Failure, respond: &mut SendResponse<Bytes>) {
    match failure.0 {
        FailureKind::Http(status, body) => {
            let mut response = Response::new(());
            *response.status_mut() = status.try_into().expect("a valid HTTP status");
            let html = HeaderValue::from_static("text/html");
            response.headers_mut().insert("content-type", html);
            if let Ok(mut stream) = respond.send_response(response, false)
                && send_data(&mut stream, body).await.is_ok()
            {
                let _ = stream.send_data(Bytes::new(), true);
            }
        }
        FailureKind::Status(code, message) => {
            let mut response = Response::new(());
            *response.headers_mut() = status_headers(code, &message);
            let _ = respond.send_response(response, true);
        }
        FailureKind::Reset(reason) => respond.send_reset(reason),
    }
}

fn status_headers(code: u32, message: &str) -> HeaderMap {
    let value = |text: &str| HeaderValue::from_str(text).expect("a valid header value");
    let mut headers = HeaderMap::new();
    headers.insert("content-type", value("application/grpc"));
    headers.insert("grpc-status", code.into());
    headers.insert("grpc-message", value(message));
    headers
}
