//! Clusters with a connected client.

use actix_etcd::Client;
use testbed::Cluster;

pub trait StartWithClient: Sized {
    /// Starts a cluster with this many members, and connects a client through the fault proxies.
    async fn start_with_client(members: usize) -> (Self, Client);
}

impl StartWithClient for Cluster {
    async fn start_with_client(members: usize) -> (Self, Client) {
        let cluster = Self::start(members).await;
        let etcd = Client::connect(cluster.endpoints()).await.unwrap();
        (cluster, etcd)
    }
}
