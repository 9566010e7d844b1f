//! The server itself: one thread for all connections, all responses encoded in advance.

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

use super::WatchPlan;
use super::lease::{self, LeaseResponse};
use super::watch::{self, Event, KeyValue};
use crate::scripted::{ResponseHeader, StatusResponse, framed};

/// Large, so that only the client under test limits the flow.
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

/// The responses, encoded once.
pub(super) struct Responses {
    range: Bytes,
    status: Bytes,
    /// Without the id of the lease, which clients know from their request.
    grant: Bytes,
    /// A header without other fields, which is a valid response of most methods.
    other: Bytes,
    pub(super) plan: WatchPlan,
}

impl Responses {
    fn new(plan: WatchPlan) -> Self {
        let header = StatusResponse::healthy().header;
        let kv = Event::with_revision(1, 64).kv.unwrap_or_default();
        let range = RangeResponse {
            header: header.clone(),
            kvs: vec![kv],
            count: 1,
        };
        // Nearly all responses have their header as field 1.
        let other = RangeResponse {
            header,
            kvs: Vec::new(),
            count: 0,
        };
        Self {
            range: framed(&range.encode_to_vec()),
            status: framed(&StatusResponse::healthy().encode_to_vec()),
            grant: framed(&LeaseResponse::of_lease(0).encode_to_vec()),
            other: framed(&other.encode_to_vec()),
            plan,
        }
    }

    fn for_path(&self, path: &str) -> Bytes {
        match path {
            "/etcdserverpb.KV/Range" => self.range.clone(),
            "/etcdserverpb.Maintenance/Status" => self.status.clone(),
            "/etcdserverpb.Lease/LeaseGrant" => self.grant.clone(),
            _ => self.other.clone(),
        }
    }
}

pub(super) fn run(plan: WatchPlan, ports: usize) -> ! {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("start the runtime");
    runtime.block_on(async {
        let responses: &'static Responses = Box::leak(Box::new(Responses::new(plan)));
        for _ in 0..ports {
            let listener = TcpListener::bind("127.0.0.1:0")
                .await
                .expect("bind a loopback port");
            let address = listener.local_addr().expect("address of the listener");
            println!("http://{address}");
            tokio::spawn(accept(listener, responses));
        }
        std::future::pending().await
    })
}

async fn accept(listener: TcpListener, responses: &'static Responses) {
    loop {
        if let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket, responses));
        }
    }
}

async fn serve(socket: TcpStream, responses: &'static Responses) {
    let _ = socket.set_nodelay(true);
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(100_000);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(socket).await else {
        return;
    };
    while let Some(Ok((request, sender))) = connection.accept().await {
        tokio::spawn(respond(request, sender, responses));
    }
}

async fn respond(
    request: Request<RecvStream>,
    mut sender: SendResponse<Bytes>,
    responses: &'static Responses,
) {
    let mut response = Response::new(());
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    match request.uri().path() {
        "/etcdserverpb.Watch/Watch" => {
            if let Ok(stream) = sender.send_response(response, false) {
                watch::serve(request, stream, responses.plan).await;
            }
            return;
        }
        "/etcdserverpb.Lease/LeaseKeepAlive" => {
            if let Ok(stream) = sender.send_response(response, false) {
                lease::serve(request, stream).await;
            }
            return;
        }
        _ => {}
    }
    let body = responses.for_path(request.uri().path());
    let mut request_body = request.into_body();
    // Reads the whole request: responding earlier would reset the stream.
    while let Some(Ok(data)) = request_body.data().await {
        let _ = request_body.flow_control().release_capacity(data.len());
    }
    let Ok(mut stream) = sender.send_response(response, false) else {
        return;
    };
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    if stream.send_data(body, false).is_ok() {
        let _ = stream.send_trailers(trailers);
    }
}
