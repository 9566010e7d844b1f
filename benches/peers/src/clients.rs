//! Adapters of the clients to common traits.

use std::future::Future;

use actix::{Actor as _, Addr};
use actix_etcd::{Etcd, Outcome, kv};

/// Error of a call.
pub struct CallError {
    /// Kind of the error, for counting.
    pub kind: String,
    /// Outcome of a write: `not-sent`, `rejected`, `unknown`; `-` if the client does not report it.
    pub outcome: &'static str,
}

/// Client handle of one caller.
pub trait Call: Send + 'static {
    fn get(&mut self, key: &str) -> impl Future<Output = Result<(), CallError>> + Send;
    fn put(&mut self, key: &str, value: &str)
    -> impl Future<Output = Result<(), CallError>> + Send;
}

/// Connects with the default options of the client.
pub trait Connect: Call + Clone + Sized {
    fn connect(endpoints: &[String]) -> impl Future<Output = Result<Self, String>>;
}

/// actix-etcd on the arbiter of its callers.
#[derive(Clone)]
pub struct OnArbiter(actix_etcd::Client);

/// actix-etcd on its own thread, as by default.
#[derive(Clone)]
pub struct OnOwnThread(actix_etcd::Client);

impl Connect for OnArbiter {
    async fn connect(endpoints: &[String]) -> Result<Self, String> {
        let builder = actix_etcd::Client::builder(endpoints).on_current_arbiter();
        let client = builder.connect().await.map_err(|error| error.to_string())?;
        Ok(Self(client))
    }
}

impl Connect for OnOwnThread {
    async fn connect(endpoints: &[String]) -> Result<Self, String> {
        let builder = actix_etcd::Client::builder(endpoints);
        let client = builder.connect().await.map_err(|error| error.to_string())?;
        Ok(Self(client))
    }
}

macro_rules! ours {
    ($($client:ty),*) => {
        $(impl $client {
            pub fn client(&self) -> &actix_etcd::Client {
                &self.0
            }
        }

        impl Call for $client {
            async fn get(&mut self, key: &str) -> Result<(), CallError> {
                self.0.get(key).await.map(drop).map_err(|error| from_actix_etcd(&error))
            }

            async fn put(&mut self, key: &str, value: &str) -> Result<(), CallError> {
                self.0.put(key, value).await.map(drop).map_err(|error| from_actix_etcd(&error))
            }
        })*
    };
}
ours!(OnArbiter, OnOwnThread);

/// actix-etcd on its own thread, called with messages to the actor `Etcd`. The actor runs on the current arbiter.
#[derive(Clone)]
pub struct ThroughActor(Addr<Etcd>);

impl Connect for ThroughActor {
    async fn connect(endpoints: &[String]) -> Result<Self, String> {
        let client = OnOwnThread::connect(endpoints).await?;
        Ok(Self(Etcd::new(client.0).start()))
    }
}

impl Call for ThroughActor {
    async fn get(&mut self, key: &str) -> Result<(), CallError> {
        let sent = self.0.send(kv::get(key)).await;
        let response = sent.unwrap_or_else(|error| Err(error.into()));
        response.map(drop).map_err(|error| from_actix_etcd(&error))
    }

    async fn put(&mut self, key: &str, value: &str) -> Result<(), CallError> {
        let sent = self.0.send(kv::put(key, value)).await;
        let response = sent.unwrap_or_else(|error| Err(error.into()));
        response.map(drop).map_err(|error| from_actix_etcd(&error))
    }
}

fn from_actix_etcd(error: &actix_etcd::Error) -> CallError {
    CallError {
        kind: format!("{:?}", error.kind()),
        outcome: match error.outcome() {
            Outcome::NotSent => "not-sent",
            Outcome::Rejected => "rejected",
            Outcome::Unknown => "unknown",
            _ => "-",
        },
    }
}

/// etcd-client. Its methods need `&mut self`, so each caller has a clone.
#[derive(Clone)]
pub struct EtcdClient(etcd_client::Client);

impl Connect for EtcdClient {
    async fn connect(endpoints: &[String]) -> Result<Self, String> {
        let client = etcd_client::Client::connect(endpoints, None).await;
        client.map(Self).map_err(|error| error.to_string())
    }
}

impl EtcdClient {
    pub fn client(&mut self) -> &mut etcd_client::Client {
        &mut self.0
    }
}

impl Call for EtcdClient {
    async fn get(&mut self, key: &str) -> Result<(), CallError> {
        let response = self.0.get(key, None).await;
        response.map(drop).map_err(|error| from_etcd_client(&error))
    }

    async fn put(&mut self, key: &str, value: &str) -> Result<(), CallError> {
        let response = self.0.put(key, value, None).await;
        response.map(drop).map_err(|error| from_etcd_client(&error))
    }
}

fn from_etcd_client(error: &etcd_client::Error) -> CallError {
    CallError {
        kind: match error {
            etcd_client::Error::GRpcStatus(status) => format!("{:?}", status.code()),
            etcd_client::Error::TransportError(_) => "Transport".to_owned(),
            _ => "Other".to_owned(),
        },
        outcome: "-",
    }
}

/// etcdrs.
#[derive(Clone)]
pub struct Etcdrs(etcdrs::Client);

impl Connect for Etcdrs {
    async fn connect(endpoints: &[String]) -> Result<Self, String> {
        let client = etcdrs::Client::new(&endpoints.join(","));
        client.map(Self).map_err(|error| error.to_string())
    }
}

impl Call for Etcdrs {
    async fn get(&mut self, key: &str) -> Result<(), CallError> {
        let response = self.0.get(key).await;
        response
            .map(drop)
            .map_err(|error| from_etcdrs(error.kind()))
    }

    async fn put(&mut self, key: &str, value: &str) -> Result<(), CallError> {
        let response = self.0.put(key).value(value).await;
        response
            .map(drop)
            .map_err(|error| from_etcdrs(error.kind()))
    }
}

fn from_etcdrs(kind: impl std::fmt::Debug) -> CallError {
    CallError {
        kind: format!("{kind:?}"),
        outcome: "-",
    }
}
