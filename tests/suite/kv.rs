//! All of KV on a real cluster.

use actix_etcd::{
    Client,
    kv::{get, put, version},
};
use testbed::Cluster;

#[tokio::test]
async fn what_was_put_is_read_back() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    let found = etcd.get("k").await.unwrap();
    assert_eq!(found.first().unwrap().value, "v");
    let done = etcd
        .txn()
        .when([version("k").eq(1)])
        .then([put("k", "w")])
        .otherwise([get("k")])
        .await
        .unwrap();
    assert!(done.succeeded);
    etcd.shutdown().await;
}
