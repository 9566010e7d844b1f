//! Lease streams: responds to every keepalive. All leases have the same TTL.

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::Request;

use crate::scripted::{Receiver, ResponseHeader, Sender, StatusResponse};

/// TTL of every lease in seconds.
pub(super) const TTL: i64 = 10;

/// Response to a grant and to a keepalive.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LeaseResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    ttl: i64,
}

impl LeaseResponse {
    pub(super) fn of_lease(id: i64) -> Self {
        Self {
            header: StatusResponse::healthy().header,
            id,
            ttl: TTL,
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeepAliveRequest {
    #[prost(int64, tag = "1")]
    id: i64,
}

pub(super) async fn serve(request: Request<RecvStream>, stream: SendStream<Bytes>) {
    let mut sender = Sender::new(stream, Vec::new());
    let mut receiver = Receiver::new(request.into_body());
    while let Some(keepalive) = receiver.recv_message::<KeepAliveRequest>().await {
        let response = LeaseResponse::of_lease(keepalive.id);
        if sender.send(&response).await.is_err() {
            return;
        }
    }
}
