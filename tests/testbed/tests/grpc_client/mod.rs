//! A plain gRPC client on one HTTP/2 connection.

#![allow(dead_code, reason = "each test program uses a part")]

use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request};
use prost::Message;
use testbed::{ResponseHeader, framed};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Any response of etcd: its header.
#[derive(Clone, PartialEq, Message)]
pub struct AnyResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// A key and a value: the request of a put, without options.
#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    #[prost(bytes, tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes, tag = "2")]
    pub value: Vec<u8>,
}

/// A complete response.
#[derive(Debug)]
pub struct Response {
    pub http_status: u16,
    /// The headers, and the trailers if there are any.
    pub metadata: HeaderMap,
    pub body: Bytes,
}

impl Response {
    pub fn grpc_status(&self) -> &str {
        self.metadata
            .get("grpc-status")
            .map_or("none", |status| status.to_str().unwrap())
    }

    /// Returns the id of the member that responded.
    pub fn member_id(&self) -> u64 {
        let message = AnyResponse::decode(self.body.slice(5..)).unwrap();
        message.header.unwrap().member_id
    }
}

pub struct GrpcClient {
    requests: SendRequest<Bytes>,
    pub driver: JoinHandle<Result<(), h2::Error>>,
}

impl GrpcClient {
    pub async fn connect(endpoint: &str) -> Self {
        let address = endpoint.trim_start_matches("http://");
        let socket = TcpStream::connect(address).await.unwrap();
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        Self {
            requests: requests.ready().await.unwrap(),
            driver: tokio::spawn(connection),
        }
    }

    pub fn send(&mut self, path: &str, message: &impl Message) -> ResponseFuture {
        let request = Request::post(format!("http://127.0.0.1{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("token", "secret")
            .body(())
            .unwrap();
        let (response, mut body) = self.requests.send_request(request, false).unwrap();
        body.send_data(framed(&message.encode_to_vec()), true)
            .unwrap();
        response
    }

    pub async fn call(
        &mut self,
        path: &str,
        message: &impl Message,
    ) -> Result<Response, h2::Error> {
        let response = self.send(path, message);
        timeout(TIMEOUT, read(response))
            .await
            .expect("a response in time")
    }

    pub async fn put(&mut self, key: &str) -> Response {
        let request = PutRequest {
            key: key.into(),
            value: "v".into(),
        };
        let response = self.call("/etcdserverpb.KV/Put", &request).await.unwrap();
        assert_eq!(response.grpc_status(), "0", "{response:?}");
        response
    }
}

async fn read(response: ResponseFuture) -> Result<Response, h2::Error> {
    let (head, mut body) = response.await?.into_parts();
    let mut data = Vec::new();
    while let Some(piece) = body.data().await {
        data.extend(piece?);
    }
    let mut metadata = head.headers;
    metadata.extend(body.trailers().await?.unwrap_or_default());
    Ok(Response {
        http_status: head.status.as_u16(),
        metadata,
        body: data.into(),
    })
}
