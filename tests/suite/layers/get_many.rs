//! Reads of many keys at one revision.

use actix::Actor;
use actix_etcd::{Client, ErrorKind, Etcd, layers::get_many::get_many};
use testbed::Cluster;

use crate::support::connected_cluster::{StartWithClient, connect_with};

async fn import(etcd: &Client, keys: usize) {
    let mut bulk = etcd.bulk().start();
    for n in 0..keys {
        bulk.put(format!("k/{n:05}"), n.to_string()).await.unwrap();
    }
    bulk.finish().await.unwrap();
}

#[tokio::test]
async fn get_many_keeps_order_and_reports_missing_keys() {
    let (_cluster, etcd) = Cluster::start_with_client(3).await;
    import(&etcd, 1_500).await;
    // Not sorted, with missing keys in between and keys that occur twice.
    let numbers: Vec<usize> = (0..3_000).map(|n| n * 1_009 % 2_000).collect();
    let keys = || numbers.iter().map(|n| format!("k/{n:05}"));
    let found = etcd.get_many(keys()).await.unwrap();
    assert_eq!(found.kvs.len(), numbers.len());
    for (number, kv) in numbers.iter().zip(&found.kvs) {
        match kv {
            Some(kv) => assert_eq!(kv.value, number.to_string()),
            None => assert!(*number >= 1_500, "{number} is missing"),
        }
    }
    let keys_only = etcd
        .get_many(keys())
        .keys_only()
        .serializable()
        .await
        .unwrap();
    let first = keys_only.kvs[0].as_ref().unwrap();
    assert_eq!((&first.key[..], first.value.len()), (&b"k/00000"[..], 0));

    let nothing = etcd.get_many(Vec::<String>::new()).await.unwrap();
    assert!(nothing.kvs.is_empty());
    let empty_key = etcd.get_many(["k/00000", ""]).await.unwrap_err();
    assert_eq!(empty_key.kind(), ErrorKind::EmptyKey);
}

#[tokio::test]
async fn get_many_shows_one_revision_during_writes() {
    const KEYS: usize = 2_000;
    let (_cluster, etcd) = Cluster::start_with_client(3).await;
    import(&etcd, KEYS).await;
    let writer = etcd.clone();
    let writing = tokio::spawn(async move {
        for n in 0_usize.. {
            let key = format!("k/{:05}", n * 37 % KEYS);
            writer.put(key, format!("new {n}")).await.unwrap();
        }
    });
    let mut revisions = Vec::new();
    for _ in 0..10 {
        let keys = (0..KEYS).map(|n| format!("k/{n:05}"));
        let found = etcd.get_many(keys).await.unwrap();
        let range = etcd.get("k/").prefix().revision(found.revision);
        let found_kvs: Vec<_> = found.kvs.into_iter().flatten().collect();
        assert_eq!(found_kvs, range.await.unwrap().kvs);
        revisions.push(found.revision);
    }
    writing.abort();
    assert!(revisions.is_sorted());
    assert_ne!(
        revisions.first(),
        revisions.last(),
        "nothing was written meanwhile"
    );
    let old = etcd.get_many(["k/00000"]).revision(revisions[0]);
    assert_eq!(old.await.unwrap().revision, revisions[0]);
}

#[tokio::test]
async fn get_many_finds_limits_of_server_and_client() {
    let cluster = Cluster::builder().arg("--max-txn-ops=10").start().await;
    let etcd = Client::builder(cluster.endpoints()).max_response_size(1_000);
    let etcd = connect_with(etcd).await;
    import(&etcd, 300).await;
    let keys = (0..300).map(|n| format!("k/{n:05}"));
    let found = etcd.get_many(keys).await.unwrap();
    let values = found.kvs.iter().flatten().map(|kv| kv.value.clone());
    let expected: Vec<_> = (0..300).map(|n| n.to_string()).collect();
    assert_eq!(values.collect::<Vec<_>>(), expected);
}

#[actix_rt::test]
async fn get_many_is_a_message() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    import(&etcd, 10).await;
    let actor = Etcd::new(etcd).start();
    let found = actor.send(get_many(["k/00003", "none"])).await.unwrap();
    let found = found.unwrap().kvs;
    assert_eq!(found[0].as_ref().unwrap().value, "3");
    assert_eq!(found[1], None);
}
