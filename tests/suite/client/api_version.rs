//! The API version that every request carries, as the server counts it.

use std::time::Duration;

use actix_etcd::{
    Client,
    proto::{self, kv_client::KvClient},
};
use testbed::{Cluster, Member};

use crate::support::wait::until_async;

/// Number of requests that the member has counted for a version: unary ones and streams.
async fn counted(member: &Member, version: &str) -> (f64, f64) {
    let count = async |kind: &str| {
        let labels = format!("client_api_version=\"{version}\",type=\"{kind}\"");
        let name = format!("etcd_server_client_requests_total{{{labels}}}");
        member.metric(&name).await.unwrap_or(0.0)
    };
    (count("unary").await, count("stream").await)
}

#[tokio::test]
async fn every_request_carries_the_api_version() {
    let cluster = Cluster::start(1).await;
    let member = cluster.member(0);
    let unknown_before = counted(&member, "unknown").await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    let lease = etcd.lease(Duration::from_secs(60)).await.unwrap();
    etcd.keep_alive_once(lease.id()).await.unwrap();
    let _watch = etcd.watch("k").await.unwrap();
    let range = proto::RangeRequest {
        key: "k".into(),
        ..Default::default()
    };
    KvClient::new(etcd.grpc()).range(range).await.unwrap();
    until_async("the server counts the requests", async || {
        let (unary, streams) = counted(&member, "3.7").await;
        // Status, put, grant and range; keepalive, watch and health.
        unary >= 4.0 && streams >= 3.0
    })
    .await;
    assert_eq!(counted(&member, "unknown").await, unknown_before);
}
