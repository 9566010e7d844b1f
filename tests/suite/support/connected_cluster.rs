//! Clusters with a connected client, and connections in the namespace that the environment selects.

use actix_etcd::{Client, ClientBuilder};
use testbed::Cluster;

/// Environment variable with a namespace for the clients of most tests, such as `t/`. Default: none.
const NAMESPACE: &str = "ETCD_NAMESPACE";

pub trait StartWithClient: Sized {
    /// Starts a cluster with this many members, and connects a client through the fault proxies.
    async fn start_with_client(members: usize) -> (Self, Client);
}

impl StartWithClient for Cluster {
    async fn start_with_client(members: usize) -> (Self, Client) {
        let cluster = Self::start(members).await;
        let etcd = connect(cluster.endpoints()).await;
        (cluster, etcd)
    }
}

/// Connects to a cluster with the default options.
pub async fn connect<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Client {
    connect_with(Client::builder(endpoints)).await
}

/// Connects to a cluster with these options, in the namespace that `ETCD_NAMESPACE` selects.
pub async fn connect_with(options: ClientBuilder) -> Client {
    let client = options.connect().await.unwrap();
    match std::env::var(NAMESPACE) {
        Ok(namespace) if !namespace.is_empty() => client.namespace(namespace).unwrap(),
        _ => client,
    }
}

/// Returns the key in the cluster for a key of these clients.
pub fn cluster_key(key: &str) -> String {
    let namespace = std::env::var(NAMESPACE).unwrap_or_default();
    format!("{namespace}{key}")
}
