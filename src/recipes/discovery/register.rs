//! A request to register an instance.

use std::{future::IntoFuture, time::Duration};

use actix::Message;
use bytes::Bytes;
use serde_json::Value;

use super::{
    Registration,
    instance::{encode, service_prefix},
};
use crate::{
    client::Client,
    error::{Error, Result},
    request::{EtcdRequest, IntoBytes, ResponseFuture},
    retry::availability::attempt_until_available,
};

const DEFAULT_TTL: Duration = Duration::from_secs(10);

/// A request to register an instance of a service. Awaiting it returns a [`Registration`]. Without a client
/// (`Register<()>`), it is a message to the actor [`Etcd`](crate::Etcd).
///
/// Awaiting it fails with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name, the address or
/// the id is empty, and if the key cannot be written. The user needs permission to read the key as well: without it,
/// the instance is not listed again after an outage, and a takeover of the key by another process is not detected.
#[derive(Debug, Clone)]
#[must_use = "the instance is registered when this is awaited"]
pub struct Register<C = ()> {
    target: Bytes,
    addr: String,
    metadata: Value,
    id: Option<Bytes>,
    ttl: Duration,
    wait: bool,
    client: C,
}

/// Requests to register an instance of the service `target`, without a client.
pub fn register(target: impl IntoBytes, addr: impl Into<String>) -> Register {
    Register {
        target: target.into_bytes(),
        addr: addr.into(),
        metadata: Value::Null,
        id: None,
        ttl: DEFAULT_TTL,
        wait: false,
        client: (),
    }
}

impl Client {
    /// Registers an instance of the service `target` at this address, under the key `<target>/<address>`.
    pub fn register(&self, target: impl IntoBytes, addr: impl Into<String>) -> Register<Client> {
        register(target, addr).on(self)
    }
}

impl<C> Register<C> {
    /// Sets metadata of the instance: any JSON value. Default: null.
    pub fn metadata(mut self, metadata: impl Into<Value>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// Sets the last part of the key, after `<target>/`. A later registration under the same key replaces this one.
    /// Default: the address.
    pub fn id(mut self, id: impl IntoBytes) -> Self {
        self.id = Some(id.into_bytes());
        self
    }

    /// Sets how long the instance stays listed after its process has died. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Waits without a deadline until the instance is registered: temporary errors, such as an unreachable cluster, are
    /// retried. Other errors, such as a denied permission, fail at once. Fails when the client is shut down. Dropping
    /// the future stops waiting. Default: fails after the client's `request_timeout`.
    pub fn wait(mut self) -> Self {
        self.wait = true;
        self
    }
}

impl Register {
    /// Binds the request to a client.
    pub fn on(self, client: &Client) -> Register<Client> {
        Register {
            target: self.target,
            addr: self.addr,
            metadata: self.metadata,
            id: self.id,
            ttl: self.ttl,
            wait: self.wait,
            client: client.clone(),
        }
    }
}

impl Register<Client> {
    async fn perform(self) -> Result<Registration> {
        if self.addr.is_empty() {
            return Err(Error::invalid("the address of the instance is empty"));
        }
        let id = self.id.unwrap_or_else(|| self.addr.clone().into());
        if id.is_empty() {
            return Err(Error::invalid("the id of the instance is empty"));
        }
        let key = Bytes::from([service_prefix(&self.target)?, id].concat());
        let value = Bytes::from(encode(&self.addr, &self.metadata));
        let background = self.client.for_background();
        let session = background.session(self.ttl).heal();
        attempt_until_available(self.wait, || {
            let (client, session) = (self.client.clone(), session.clone());
            let (key, value) = (key.clone(), value.clone());
            async move { Registration::start(client, session.await?, key, value).await }
        })
        .await
    }
}

impl IntoFuture for Register<Client> {
    type Output = Result<Registration>;
    type IntoFuture = ResponseFuture<Registration>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.perform())
    }
}

impl Message for Register {
    type Result = Result<Registration>;
}

impl EtcdRequest<Client> for Register {
    type Response = Registration;

    fn name(&self) -> &'static str {
        "Register"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Registration> {
        self.on(client).into_future()
    }

    fn discard(self, registration: Registration) {
        registration.detach();
    }
}
