//! Every key-value operation and option, on a real cluster.

use actix_etcd::{
    Client, ErrorKind,
    kv::{Compare, GetResponse, OpResponse, delete, get, put, txn},
};
use bytes::Bytes;
use serde_json::json;
use testbed::Cluster;
use tokio_stream::StreamExt;

use crate::support::connected_cluster::{StartWithClient, connect_with};

fn keys(found: &GetResponse) -> Vec<&str> {
    found
        .kvs
        .iter()
        .map(|kv| std::str::from_utf8(&kv.key).unwrap())
        .collect()
}

#[tokio::test]
async fn get_sends_every_option() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    // Keys, values and revisions have different orders, so that each sort option has a distinct result.
    let mut revisions = Vec::new();
    for (key, value) in [("p/b", "2"), ("p/a", "3"), ("p/c", "1"), ("q", "9")] {
        revisions.push(etcd.put(key, value).await.unwrap().header.revision);
    }
    let last_change = etcd.put("p/b", "2").await.unwrap().header.revision;

    assert_eq!(keys(&etcd.get("p/a").await.unwrap()), ["p/a"]);
    assert_eq!(
        keys(&etcd.get("p/").prefix().await.unwrap()),
        ["p/a", "p/b", "p/c"]
    );
    assert_eq!(
        keys(&etcd.get("").prefix().await.unwrap()),
        ["p/a", "p/b", "p/c", "q"]
    );
    assert_eq!(
        keys(&etcd.get("p/a").range("p/c").await.unwrap()),
        ["p/a", "p/b"]
    );
    assert_eq!(
        keys(&etcd.get("p/b").from_key().await.unwrap()),
        ["p/b", "p/c", "q"]
    );

    let limited = etcd.get("p/").prefix().limit(2).await.unwrap();
    assert_eq!(
        (keys(&limited), limited.more, limited.count),
        (vec!["p/a", "p/b"], true, 3)
    );
    let at_first_revision = etcd
        .get("p/")
        .prefix()
        .revision(revisions[0])
        .await
        .unwrap();
    assert_eq!(keys(&at_first_revision), ["p/b"]);

    let range = || get("p/").prefix().on(&etcd);
    assert_eq!(
        keys(&range().sort_by_key().descending().await.unwrap()),
        ["p/c", "p/b", "p/a"]
    );
    assert_eq!(
        keys(&range().descending().await.unwrap()),
        ["p/c", "p/b", "p/a"]
    );
    assert_eq!(
        keys(&range().sort_by_value().await.unwrap()),
        ["p/c", "p/b", "p/a"]
    );
    assert_eq!(
        keys(&range().sort_by_value().descending().await.unwrap()),
        ["p/a", "p/b", "p/c"]
    );
    assert_eq!(
        keys(&range().sort_by_create_revision().await.unwrap()),
        ["p/b", "p/a", "p/c"]
    );
    assert_eq!(
        keys(&range().sort_by_mod_revision().await.unwrap()),
        ["p/a", "p/c", "p/b"]
    );
    assert_eq!(
        keys(
            &range()
                .sort_by_version()
                .descending()
                .limit(1)
                .await
                .unwrap()
        ),
        ["p/b"]
    );

    assert_eq!(keys(&range().first_by_key().await.unwrap()), ["p/a"]);
    assert_eq!(keys(&range().last_by_key().await.unwrap()), ["p/c"]);
    assert_eq!(
        keys(&range().first_by_create_revision().await.unwrap()),
        ["p/b"]
    );
    assert_eq!(
        keys(&range().last_by_create_revision().await.unwrap()),
        ["p/c"]
    );
    assert_eq!(
        keys(&range().first_by_mod_revision().await.unwrap()),
        ["p/a"]
    );
    assert_eq!(
        keys(&range().last_by_mod_revision().await.unwrap()),
        ["p/b"]
    );

    assert_eq!(
        keys(&range().min_mod_revision(last_change).await.unwrap()),
        ["p/b"]
    );
    assert_eq!(
        keys(&range().max_mod_revision(revisions[1]).await.unwrap()),
        ["p/a"]
    );
    assert_eq!(
        keys(&range().min_create_revision(revisions[2]).await.unwrap()),
        ["p/c"]
    );
    assert_eq!(
        keys(&range().max_create_revision(revisions[0]).await.unwrap()),
        ["p/b"]
    );

    let without_values = range().keys_only().await.unwrap();
    assert!(without_values.kvs.iter().all(|kv| kv.value.is_empty()));
    assert_eq!(without_values.kvs.len(), 3);
    let count = range().count_only().await.unwrap();
    assert_eq!((count.kvs.len(), count.count), (0, 3));
    assert_eq!(keys(&range().serializable().await.unwrap()).len(), 3);
}

#[tokio::test]
async fn put_and_delete_send_every_option() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    cluster
        .api(0, "/v3/lease/grant", json!({"ID": 77, "TTL": 600}))
        .await
        .unwrap();

    assert_eq!(etcd.put("k", "1").prev_kv().await.unwrap().prev_kv, None);
    let previous = etcd
        .put("k", "2")
        .lease(77)
        .prev_kv()
        .await
        .unwrap()
        .prev_kv
        .unwrap();
    assert_eq!((previous.value, previous.lease), (Bytes::from("1"), 0));
    etcd.put("k", "3").ignore_lease().await.unwrap();
    let stored = etcd.get("k").await.unwrap().kvs.remove(0);
    assert_eq!((stored.value, stored.lease), (Bytes::from("3"), 77));
    etcd.put("k", "").ignore_value().await.unwrap();
    let stored = etcd.get("k").await.unwrap().kvs.remove(0);
    assert_eq!((stored.value, stored.lease), (Bytes::from("3"), 0));

    for key in ["d/1", "d/2", "d/3", "e", "f"] {
        etcd.put(key, "x").await.unwrap();
    }
    assert_eq!(etcd.delete("missing").await.unwrap().deleted, 0);
    let deleted = etcd.delete("d/1").range("d/3").prev_kv().await.unwrap();
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (2, 2));
    assert_eq!(etcd.delete("d/").prefix().await.unwrap().deleted, 1);
    assert_eq!(etcd.delete("e").from_key().await.unwrap().deleted, 3);
    assert_eq!(etcd.get("").prefix().count_only().await.unwrap().count, 0);
}

#[tokio::test]
async fn txn_compares_every_target_with_every_operator() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    cluster
        .api(0, "/v3/lease/grant", json!({"ID": 7, "TTL": 600}))
        .await
        .unwrap();
    etcd.put("k", "b").await.unwrap();
    let revision = etcd.put("k", "b").lease(7).await.unwrap().header.revision;
    let holds = async |condition| etcd.txn().when([condition]).await.unwrap().succeeded;

    let targets = [
        (Compare::version as fn(&'static str) -> _, 2),
        (Compare::create_revision, revision - 1),
        (Compare::mod_revision, revision),
        (Compare::lease, 7),
    ];
    for (target, actual) in targets {
        assert!(holds(target("k").eq(actual)).await);
        assert!(!holds(target("k").eq(actual + 1)).await);
        assert!(holds(target("k").ne(actual + 1)).await);
        assert!(!holds(target("k").ne(actual)).await);
        assert!(holds(target("k").gt(actual - 1)).await);
        assert!(!holds(target("k").gt(actual)).await);
        assert!(holds(target("k").lt(actual + 1)).await);
        assert!(!holds(target("k").lt(actual)).await);
    }
    assert!(holds(Compare::value("k").eq("b")).await);
    assert!(holds(Compare::value("k").ne("a")).await);
    assert!(holds(Compare::value("k").gt("a")).await);
    assert!(holds(Compare::value("k").lt("c")).await);
    assert!(!holds(Compare::value("k").lt("b")).await);

    etcd.put("k2", "b").await.unwrap();
    assert!(holds(Compare::value("k").eq("b").prefix()).await);
    assert!(holds(Compare::version("k").gt(0).range("k3")).await);
    assert!(!holds(Compare::version("k").gt(1).from_key()).await);
}

#[tokio::test]
async fn nested_txn_returns_responses_in_order() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("b", "old").await.unwrap();
    let response = etcd
        .txn()
        .when([Compare::version("a").eq(0), Compare::version("b").eq(1)])
        .then([put("a", "1")])
        .then([get("a")])
        .then([txn()
            // All conditions are evaluated before the first operation is applied.
            .when([Compare::version("a").eq(0)])
            .then([delete("b").prev_kv()])
            .otherwise([put("wrong", "x")])])
        .otherwise([get("a")])
        .await
        .unwrap();
    assert!(response.succeeded);
    let [
        OpResponse::Put(_),
        OpResponse::Get(read),
        OpResponse::Txn(nested),
    ] = &response.responses[..]
    else {
        panic!("{response:?}")
    };
    assert_eq!(read.first().unwrap().value, "1");
    assert_eq!(read.header, response.header);
    let [OpResponse::Delete(deleted)] = &nested.responses[..] else {
        panic!("{nested:?}")
    };
    assert_eq!((nested.succeeded, deleted.deleted), (true, 1));

    let unsuccessful = etcd
        .txn()
        .when([Compare::version("a").eq(9)])
        .then([put("a", "1")])
        .otherwise([get("a")])
        .await
        .unwrap();
    assert!(!unsuccessful.succeeded);
    assert!(matches!(&unsuccessful.responses[..], [OpResponse::Get(found)] if found.count == 1));

    let too_many: Vec<_> = (0..200).map(|n| put(format!("many/{n}"), "x")).collect();
    let refused = etcd.txn().then(too_many).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooManyOps);
}

#[tokio::test]
async fn read_of_compacted_revision_fails() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let first = etcd.put("k", "1").await.unwrap().header.revision;
    let second = etcd.put("k", "2").await.unwrap().header.revision;
    etcd.compact(second).physical().await.unwrap();
    let error = etcd.get("k").revision(first).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compacted);
    let error = etcd.get("k").revision(second + 100).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FutureRevision);
    let error = etcd.compact(second).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compacted);
}

#[tokio::test]
async fn pages_show_one_revision_during_writes() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for n in 0..95 {
        etcd.put(format!("page/{n:03}"), "old").await.unwrap();
    }
    etcd.put("pagf", "outside").await.unwrap();
    let mut pages = etcd.get("page/").prefix().pages(10);
    let mut seen = Vec::new();
    let mut count = 0;
    while let Some(page) = StreamExt::next(&mut pages).await {
        seen.extend(page.unwrap().kvs);
        count += 1;
        etcd.put(format!("page/{:03}", 94 - count), "new")
            .await
            .unwrap();
        etcd.delete("page/094").await.unwrap();
        etcd.put(format!("page/{count:03}x"), "new").await.unwrap();
    }
    assert_eq!((count, seen.len()), (10, 95));
    assert!(seen.iter().all(|kv| kv.value == "old"));
    assert!(seen.is_sorted_by_key(|kv| kv.key.clone()));

    let all: Vec<_> = etcd.get("").prefix().pages(1000).collect::<Vec<_>>().await;
    assert_eq!(all.len(), 1);
    for invalid in [
        etcd.get("page/").prefix().pages(0),
        etcd.get("page/").prefix().descending().pages(5),
        etcd.get("page/").prefix().sort_by_value().pages(5),
        etcd.get("page/").prefix().limit(3).pages(5),
        etcd.get("page/").pages(5),
    ] {
        let items: Vec<_> = invalid.collect().await;
        assert!(matches!(&items[..], [Err(error)] if error.kind() == ErrorKind::InvalidArgument));
    }
}

#[tokio::test]
async fn range_over_four_megabytes_is_returned_whole() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let large = vec![b'x'; 1 << 20];
    for n in 0..9 {
        etcd.put(format!("large/{n}"), &large).await.unwrap();
    }
    let all = etcd.get("large/").prefix().await.unwrap();
    assert_eq!(
        all.kvs.iter().map(|kv| kv.value.len()).sum::<usize>(),
        9 << 20
    );

    let limited = Client::builder(cluster.endpoints()).max_response_size(4 << 20);
    let limited = connect_with(limited).await;
    let refused = limited.get("large/").prefix().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResponseTooLarge);
    assert!(
        limited.get("large/0").await.is_ok(),
        "the connection is still usable"
    );
}

#[tokio::test]
async fn keys_and_values_accept_any_bytes() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    etcd.put(&all_bytes, &all_bytes).await.unwrap();
    etcd.put(Bytes::from_static(b"\0"), [0u8; 3]).await.unwrap();
    etcd.put(String::from("owned"), "").await.unwrap();
    assert_eq!(
        etcd.get(&all_bytes).await.unwrap().first().unwrap().value,
        all_bytes
    );
    assert_eq!(
        etcd.get([0u8]).await.unwrap().first().unwrap().value,
        [0, 0, 0][..]
    );
    assert_eq!(etcd.get("owned").await.unwrap().first().unwrap().value, "");
}
