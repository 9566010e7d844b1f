//! One thread, all connections, every answer ready before the question.

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

use super::WatchPlan;
use super::watch::{self, Event, KeyValue};
use crate::scripted::{ResponseHeader, StatusResponse, framed};

/// Large windows: flow control is for the client under test to limit.
const WINDOW: u32 = 16 * 1024 * 1024;

#[derive(Clone, PartialEq, prost::Message)]
struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
    #[prost(int64, tag = "4")]
    count: i64,
}

/// The answers, encoded once.
pub(super) struct Answers {
    range: Bytes,
    status: Bytes,
    /// A header alone: what most answers of etcd are.
    other: Bytes,
    pub(super) plan: WatchPlan,
}

impl Answers {
    fn new(plan: WatchPlan) -> Self {
        let header = StatusResponse::healthy().header;
        let kv = Event::numbered(1, 64).kv.unwrap_or_default();
        let range = RangeResponse {
            header: header.clone(),
            kvs: vec![kv],
            count: 1,
        };
        // Field 1 of nearly every answer is its header.
        let other = RangeResponse {
            header,
            kvs: Vec::new(),
            count: 0,
        };
        Self {
            range: framed(&range.encode_to_vec()),
            status: framed(&StatusResponse::healthy().encode_to_vec()),
            other: framed(&other.encode_to_vec()),
            plan,
        }
    }

    fn of(&self, path: &str) -> Bytes {
        match path {
            "/etcdserverpb.KV/Range" => self.range.clone(),
            "/etcdserverpb.Maintenance/Status" => self.status.clone(),
            _ => self.other.clone(),
        }
    }
}

pub(super) fn run(plan: WatchPlan, until: impl FnOnce() + Send + 'static) -> ! {
    std::thread::spawn(until);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        println!("http://{address}");
        let answers: &'static Answers = Box::leak(Box::new(Answers::new(plan)));
        loop {
            if let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, answers));
            }
        }
    })
}

async fn serve(socket: TcpStream, answers: &'static Answers) {
    let _ = socket.set_nodelay(true);
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(100_000);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(socket).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, answers));
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    answers: &'static Answers,
) {
    let mut response = Response::new(());
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    if request.uri().path() == "/etcdserverpb.Watch/Watch" {
        if let Ok(stream) = respond.send_response(response, false) {
            watch::serve(request, stream, answers.plan).await;
        }
        return;
    }
    let body = answers.of(request.uri().path());
    let mut asked = request.into_body();
    // To its end: a stream that is answered before would have to be reset.
    while let Some(Ok(data)) = asked.data().await {
        let _ = asked.flow_control().release_capacity(data.len());
    }
    let Ok(mut stream) = respond.send_response(response, false) else {
        return;
    };
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    if stream.send_data(body, false).is_ok() {
        let _ = stream.send_trailers(trailers);
    }
}
