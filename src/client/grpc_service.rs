//! The cluster as a service for tonic's generated clients.
//!
//! The requests of [`Client`] do not use it. It is for RPCs that only [`proto`](crate::proto) offers, and for streams
//! without the client's own handling.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use tokio::time::Instant;
use tonic::{body::Body, codegen::Service};

use super::Client;
pub use crate::transport::ResponseBody;
use crate::{error::Error, transport::channel::StreamUse};

/// The cluster as a service for tonic's generated clients, created by [`Client::grpc`]. It balances calls over the
/// ready members and adds the client's token, but has no retries and no deadlines. A call with a rejected token
/// fails; the next call uses a new token. The member of an open call is probed, and the call fails if the member stops
/// responding.
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
    /// Returns a service for the generated clients in [`proto`](crate::proto). The generated clients limit the size of
    /// responses themselves (`max_decoding_message_size`); the client's `max_response_size` does not apply.
    /// Default: 4 MiB. Messages are sent as they are, also by a client with a
    /// [namespace](crate::layers::namespace) or an [order](crate::layers::ordered).
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

    /// Always ready: [`call`](Self::call) waits for a member, so that it can return the reason if none is ready.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let client = self.client.clone();
        Box::pin(async move {
            let tokens = client.caller().tokens.clone();
            let deadline = Instant::now() + client.request_timeout();
            let token = tokens.current(deadline).await?;
            let connection = client.ready_connection().await?;
            let free_slot = connection.channel.try_slot(StreamUse::Call);
            let (connection, slot) = if let Some(slot) = free_slot {
                (connection, slot)
            } else {
                let caller = client.caller();
                caller.wait_for_stream(connection, deadline).await?
            };
            if let Some(value) = &token.value {
                request.headers_mut().insert("token", value.clone());
            }
            let member = connection.id;
            let on_failure = move |kind| {
                tokens.report_refused(member, &token, kind);
            };
            let channel = &connection.channel;
            let registration = connection.register_stream();
            channel
                .raw_exchange(slot, request, registration, on_failure)
                .await
        })
    }
}
