//! Connectivity of the client's endpoints: the current state and every change.

use std::{
    fmt,
    future::IntoFuture,
    pin::Pin,
    task::{Context, Poll},
};

use actix::{Message, Recipient};
use tokio_stream::{
    Stream,
    wrappers::{BroadcastStream, errors::BroadcastStreamRecvError},
};

use super::Client;
use crate::{
    balancer::{
        ConnectivityChange, EndpointStatus,
        messages::{SendChangesTo, SubscribeToChanges},
    },
    error::{Error, Result},
    request::{EtcdRequest, ResponseFuture},
};

impl Client {
    /// Returns the status of every endpoint.
    pub fn connectivity(&self) -> Vec<EndpointStatus> {
        let set = self.caller().ready_set.load();
        set.views.iter().map(EndpointStatus::from).collect()
    }

    /// Subscribes to the state changes of all endpoints: await it for a stream, or send the changes to an actor with
    /// [`deliver_to`](ConnectivityChanges::deliver_to).
    pub fn connectivity_changes(&self) -> ConnectivityChanges {
        ConnectivityChanges(self.clone())
    }
}

/// A subscription to connectivity changes, created by [`Client::connectivity_changes`].
#[derive(Debug)]
#[must_use = "await it for a stream, or call `deliver_to`"]
pub struct ConnectivityChanges(Client);

impl ConnectivityChanges {
    /// Sends every change to an actor, each after the previous one was handled, until the actor or the client stops. An
    /// actor that falls far behind misses the oldest changes.
    pub fn deliver_to(self, recipient: Recipient<ConnectivityChange>) {
        let balancer = &self.0.caller().balancer;
        balancer.do_send(SendChangesTo(recipient));
    }
}

impl IntoFuture for ConnectivityChanges {
    type Output = Result<ConnectivityStream>;
    type IntoFuture = ResponseFuture<ConnectivityStream>;

    /// Fails with [`ErrorKind::Shutdown`](crate::ErrorKind::Shutdown) if the client has been shut down.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let changes = self.0.caller().balancer.send(SubscribeToChanges).await;
            let changes = changes.map_err(|_| Error::shut_down())?;
            Ok(ConnectivityStream(BroadcastStream::new(changes)))
        })
    }
}

/// A stream of connectivity changes. A reader that falls far behind misses the oldest ones.
#[must_use = "a stream does nothing until it is read"]
pub struct ConnectivityStream(BroadcastStream<ConnectivityChange>);

impl Stream for ConnectivityStream {
    type Item = ConnectivityChange;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match std::task::ready!(Pin::new(&mut self.0).poll_next(cx)) {
                Some(Ok(change)) => return Poll::Ready(Some(change)),
                Some(Err(BroadcastStreamRecvError::Lagged(_))) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

impl fmt::Debug for ConnectivityStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectivityStream").finish_non_exhaustive()
    }
}

/// Sends every connectivity change to an actor, each after the previous one was handled, until the actor or the client
/// stops.
#[derive(Clone, Message)]
#[rtype(result = "Result<()>")]
pub struct SubscribeConnectivity(pub Recipient<ConnectivityChange>);

impl EtcdRequest<Client> for SubscribeConnectivity {
    type Response = ();

    fn name(&self) -> &'static str {
        "SubscribeConnectivity"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<()> {
        client.connectivity_changes().deliver_to(self.0);
        Box::pin(std::future::ready(Ok(())))
    }
}
