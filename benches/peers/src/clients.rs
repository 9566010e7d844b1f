//! The clients behind one trait: what differs between them is here, and nothing of the measuring.

use std::future::Future;

use actix_etcd::Outcome;

/// A call that failed.
pub struct Failed {
    /// A word for it, to be counted by.
    pub kind: String,
    /// What it says of a write: `not-sent`, `rejected`, `unknown`; `-` where the client does not tell.
    pub outcome: &'static str,
}

/// One caller's handle.
pub trait Call: Send + 'static {
    fn get(&mut self, key: &str) -> impl Future<Output = Result<(), Failed>> + Send;
    fn put(&mut self, key: &str, value: &str) -> impl Future<Output = Result<(), Failed>> + Send;
}

/// Connects with the client's own defaults.
pub trait Connect: Call + Clone + Sized {
    fn connect(endpoints: &[String]) -> impl Future<Output = Result<Self, String>>;
}

/// actix-etcd on the arbiter of its callers.
#[derive(Clone)]
pub struct OnArbiter(actix_etcd::Client);

/// actix-etcd as it is by default, on a thread of its own.
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
            async fn get(&mut self, key: &str) -> Result<(), Failed> {
                self.0.get(key).await.map(drop).map_err(|error| told(&error))
            }

            async fn put(&mut self, key: &str, value: &str) -> Result<(), Failed> {
                self.0.put(key, value).await.map(drop).map_err(|error| told(&error))
            }
        })*
    };
}
ours!(OnArbiter, OnOwnThread);

fn told(error: &actix_etcd::Error) -> Failed {
    Failed {
        kind: format!("{:?}", error.kind()),
        outcome: match error.outcome() {
            Outcome::NotSent => "not-sent",
            Outcome::Rejected => "rejected",
            Outcome::Unknown => "unknown",
            _ => "-",
        },
    }
}

/// etcd-client; its methods need `&mut self`, so each caller has a clone.
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
    async fn get(&mut self, key: &str) -> Result<(), Failed> {
        let answer = self.0.get(key, None).await;
        answer.map(drop).map_err(|error| graded(&error))
    }

    async fn put(&mut self, key: &str, value: &str) -> Result<(), Failed> {
        let answer = self.0.put(key, value, None).await;
        answer.map(drop).map_err(|error| graded(&error))
    }
}

fn graded(error: &etcd_client::Error) -> Failed {
    Failed {
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
    async fn get(&mut self, key: &str) -> Result<(), Failed> {
        let answer = self.0.get(key).await;
        answer.map(drop).map_err(|error| worded(error.kind()))
    }

    async fn put(&mut self, key: &str, value: &str) -> Result<(), Failed> {
        let answer = self.0.put(key).value(value).await;
        answer.map(drop).map_err(|error| worded(error.kind()))
    }
}

fn worded(kind: impl std::fmt::Debug) -> Failed {
    Failed {
        kind: format!("{kind:?}"),
        outcome: "-",
    }
}
