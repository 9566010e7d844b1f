//! Clients with a namespace, next to a plain client of the same cluster.

use std::time::Duration;

use actix::Actor;
use actix_etcd::{
    Client, ErrorKind, Etcd, Outcome, WatchEvent,
    kv::{Compare, OpResponse, delete, get, put, txn},
    recipes::mutex::Mutex,
    watch::watch_keys,
};
use testbed::Cluster;
use tokio_stream::StreamExt;

use crate::support::{
    message_recorder::record_messages,
    wait::{TEST_TIMEOUT, until},
    watch_items::{next_change, next_item},
};

/// Keys next to the namespace `t/`: before it, its name itself, after it.
const NEIGHBORS: [&str; 6] = ["s/a", "t", "t.", "t/", "t0", "u/a"];

/// Starts a member with a value in every neighboring key. Returns a plain client and one of the namespace `t/`.
async fn start() -> (Cluster, Client, Client) {
    let cluster = Cluster::start(1).await;
    let plain = Client::connect(cluster.endpoints()).await.unwrap();
    for key in NEIGHBORS {
        plain.put(key, "neighbor").await.unwrap();
    }
    let etcd = plain.namespace("t/").unwrap();
    (cluster, plain, etcd)
}

/// Returns all keys of the client.
async fn keys(etcd: &Client) -> Vec<String> {
    let found = etcd.get("").prefix().await.unwrap();
    let keys = found.kvs.iter().map(|kv| kv.key_str().unwrap().to_owned());
    keys.collect()
}

/// Checks that exactly these keys are in the namespace, and that the keys around it are as they were.
async fn check(plain: &Client, etcd: &Client, expected: &[&str]) {
    assert_eq!(keys(etcd).await, expected);
    let mut all: Vec<String> = NEIGHBORS.map(str::to_owned).into();
    all.extend(expected.iter().map(|key| format!("t/{key}")));
    all.sort();
    assert_eq!(keys(plain).await, all);
    for key in NEIGHBORS {
        let kv = plain.get(key).await.unwrap().kvs.remove(0);
        assert_eq!((&kv.value[..], kv.version), (&b"neighbor"[..], 1), "{key}");
    }
}

#[tokio::test]
async fn requests_reach_only_keys_of_namespace() {
    let (_cluster, plain, etcd) = start().await;
    check(&plain, &etcd, &[]).await;
    assert_eq!(etcd.delete("").prefix().await.unwrap().deleted, 0);
    for key in ["a", "b", "c", "d"] {
        etcd.put(key, key).await.unwrap();
    }
    let previous = etcd.put("a", "2").prev_kv().await.unwrap().prev_kv;
    assert_eq!(previous.unwrap().key, "a");
    check(&plain, &etcd, &["a", "b", "c", "d"]).await;
    let last = etcd.get("c").from_key().await.unwrap();
    assert_eq!((last.count, &last.kvs[1].key[..]), (2, &b"d"[..]));
    let first = etcd.get("a").range("c").await.unwrap();
    assert_eq!((first.count, &first.kvs[1].key[..]), (2, &b"b"[..]));
    let largest = etcd.get("").prefix().last_by_key().await.unwrap();
    assert_eq!(largest.kvs[0].key, "d");

    let deleted = etcd.delete("c").from_key().prev_kv().await.unwrap();
    let deleted: Vec<_> = deleted.prev_kvs.into_iter().map(|kv| kv.key).collect();
    assert_eq!(deleted, ["c", "d"]);
    check(&plain, &etcd, &["a", "b"]).await;
    assert_eq!(etcd.delete("").prefix().await.unwrap().deleted, 2);
    check(&plain, &etcd, &[]).await;
}

#[tokio::test]
async fn transaction_stays_in_namespace() {
    let (_cluster, plain, etcd) = start().await;
    for key in ["a", "b"] {
        etcd.put(key, "1").await.unwrap();
    }
    let response = etcd
        .txn()
        .when([
            Compare::version("a").eq(1),
            // Holds for all keys of the namespace, and not for those around it.
            Compare::value("a").eq("1").from_key(),
        ])
        .then((
            put("B", "1"),
            get("").prefix(),
            txn()
                .when(Compare::version("missing").eq(0))
                .then(delete("a").from_key().prev_kv()),
        ))
        .await
        .unwrap();
    assert!(response.succeeded);
    let [_, OpResponse::Get(read), OpResponse::Txn(nested)] = &response.responses[..] else {
        panic!("{response:?}");
    };
    assert_eq!((read.count, &read.kvs[1].key[..]), (3, &b"a"[..]));
    let [OpResponse::Delete(deleted)] = &nested.responses[..] else {
        panic!("{nested:?}");
    };
    assert_eq!(deleted.prev_kvs[1].key, "b");
    check(&plain, &etcd, &["B"]).await;
}

#[tokio::test]
async fn watch_of_whole_namespace_ignores_neighbors() {
    let (_cluster, plain, etcd) = start().await;
    let mut all = etcd.watch("").prefix().prev_kv().await.unwrap();
    let mut from_key = etcd.watch("b").from_key().hedged().await.unwrap();
    for key in NEIGHBORS {
        plain.put(key, "changed").await.unwrap();
        plain.delete(key).await.unwrap();
    }
    plain.put("t/b", "1").await.unwrap();
    let last = etcd.delete("b").await.unwrap().header.revision;
    assert_eq!(next_change(&mut all).await, (last - 1, vec!["b".into()]));
    let WatchEvent::Events(events) = next_item(&mut all).await else {
        panic!("no events");
    };
    assert_eq!((events.revision(), events[0].key()), (last, &b"b"[..]));
    assert_eq!(events[0].prev_kv.as_ref().unwrap().key, "b");
    assert_eq!(
        next_change(&mut from_key).await,
        (last - 1, vec!["b".into()])
    );
}

#[tokio::test]
async fn exactly_once_writes_keep_markers_in_namespace() {
    let (_cluster, plain, etcd) = start().await;
    for n in 0..5 {
        // The clients share their connections, but not their markers.
        for client in [&etcd, &plain] {
            let write = client.put("once", n.to_string()).exactly_once();
            assert!(write.await.unwrap().response.is_some());
        }
        let increment = etcd.modify("count", |found| {
            let count = found.map_or(0, |kv| kv.value_str().unwrap().parse().unwrap());
            (count + 1).to_string()
        });
        increment.await.unwrap();
    }
    for client in [&etcd, &plain] {
        let markers = client.get("actix-etcd/markers/").prefix().await;
        assert_eq!(markers.unwrap().count, 1);
    }
    assert_eq!(etcd.get("count").await.unwrap().value().unwrap(), "5");
    assert_eq!(plain.get("t/once").await.unwrap().kvs[0].version, 5);
}

#[tokio::test]
async fn stream_and_get_many_read_namespace() {
    let (_cluster, plain, etcd) = start().await;
    let mut bulk = etcd.bulk().start();
    for n in 0..3_000 {
        bulk.put(format!("k/{n:04}"), "v").await.unwrap();
    }
    bulk.finish().await.unwrap();
    let streamed = etcd.get("").prefix().stream();
    let streamed: Vec<_> = streamed.map(Result::unwrap).collect().await;
    assert_eq!(streamed, etcd.get("").prefix().await.unwrap().kvs);
    assert_eq!(
        (streamed.len(), &streamed[0].key[..]),
        (3_000, &b"k/0000"[..])
    );
    let found = etcd.get_many(["k/0001", "t/k/0001", "t0"]).await.unwrap();
    let found: Vec<_> = found.kvs.into_iter().flatten().collect();
    assert_eq!((found.len(), &found[0].key[..]), (1, &b"k/0001"[..]));
    let count = plain.get("t/k/").prefix().count_only().await.unwrap().count;
    assert_eq!(count, 3_000);
}

#[tokio::test]
async fn lease_lists_only_keys_of_namespace() {
    let (_cluster, plain, etcd) = start().await;
    let lease = etcd.lease(TEST_TIMEOUT).await.unwrap();
    etcd.put("inside", "").lease(&lease).await.unwrap();
    plain.put("outside", "").lease(&lease).await.unwrap();
    assert_eq!(lease.keys().await.unwrap(), ["inside"]);
    let queried = etcd.time_to_live(&lease).with_keys().await.unwrap();
    assert_eq!(queried.keys, ["inside"]);
    let queried = plain.time_to_live(&lease).with_keys().await.unwrap();
    assert_eq!(queried.keys.len(), 2);
}

#[tokio::test]
async fn locks_of_two_namespaces_are_independent() {
    let (_cluster, plain, a) = start().await;
    let b = plain.namespace("u/").unwrap();
    let mutex = async |etcd: &Client| -> Mutex { etcd.mutex("jobs").await.unwrap() };
    let (in_a, in_b) = (mutex(&a).await, mutex(&b).await);
    let (held_a, held_b) = (in_a.lock().await.unwrap(), in_b.lock().await.unwrap());
    assert!(held_a.key().starts_with(b"jobs/"));
    assert!(mutex(&a).await.try_lock().await.unwrap().is_none());
    assert_eq!(plain.get("t/jobs/").prefix().await.unwrap().count, 1);
    // A key that blocks the lock is named as its user knows it.
    held_a.unlock().await.unwrap();
    a.put("jobs/data", "").await.unwrap();
    let blocked = in_a.lock().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    assert!(blocked.to_string().contains("`jobs/data`"), "{blocked}");
    held_b.unlock().await.unwrap();
}

#[tokio::test]
async fn services_of_two_namespaces_are_independent() {
    let (_cluster, plain, a) = start().await;
    let b = plain.namespace("u/").unwrap();
    let _registration = a.register("web", "10.0.0.1:80").await.unwrap();
    let found = a.discover("web").await.unwrap();
    assert_eq!(found.instances()[0].key, "web/10.0.0.1:80");
    assert!(b.discover("web").await.unwrap().instances().is_empty());
    assert_eq!(plain.get("t/web/").prefix().await.unwrap().count, 1);
}

#[tokio::test]
async fn server_side_lock_is_in_namespace() {
    let (_cluster, plain, etcd) = start().await;
    let lease = etcd.lease(TEST_TIMEOUT).await.unwrap();
    let held = etcd.server_locks().lock("door", &lease).await.unwrap();
    assert!(held.key.starts_with(b"door/"), "{:?}", held.key);
    assert_eq!(plain.get("t/door/").prefix().await.unwrap().count, 1);
    // The same name in the key space of the cluster is another lock.
    let other = plain.server_locks().lock("door", &lease);
    other.timeout(TEST_TIMEOUT).await.unwrap();
    etcd.server_locks().unlock(&held.key).await.unwrap();
    assert_eq!(plain.get("t/door/").prefix().await.unwrap().count, 0);
}

#[actix_rt::test]
async fn actor_sends_messages_within_namespace() {
    let (_cluster, plain, client) = start().await;
    let etcd = Etcd::new(client).start();
    let (events, recipient) = record_messages::<WatchEvent>();
    let watch = watch_keys("").prefix().deliver_to(recipient);
    let _watch = etcd.send(watch).await.unwrap().unwrap();
    etcd.send(put("a", "1")).await.unwrap().unwrap();
    until("the event arrives", || !events.lock().unwrap().is_empty()).await;
    let WatchEvent::Events(first) = events.lock().unwrap()[0].clone() else {
        panic!("no events");
    };
    assert_eq!(first[0].key(), b"a");
    assert_eq!(plain.get("t/a").await.unwrap().count, 1);
}

#[tokio::test]
async fn nested_namespace_outlives_its_outer_clients() {
    let (_cluster, plain, outer) = start().await;
    let inner = outer.namespace("u/").unwrap();
    drop(outer);
    inner.put("a", "1").await.unwrap();
    assert_eq!(keys(&inner).await, ["a"]);
    assert_eq!(plain.get("t/u/a").await.unwrap().count, 1);
    drop(plain);
    assert_eq!(inner.get("a").await.unwrap().count, 1);
    inner.shutdown().await;
}

#[tokio::test]
async fn invalid_namespaces_are_refused() {
    let etcd = Client::builder(["http://127.0.0.1:1"]);
    let etcd = etcd.request_timeout(Duration::from_secs(1));
    let etcd = etcd.connect_lazy().await.unwrap();
    for (namespace, advice) in [
        ("", "give it a prefix"),
        ("tenants/a", "`tenants/a/`"),
        ("tenants/a/\n", "`namespace_exactly`"),
    ] {
        let error = etcd.namespace(namespace).unwrap_err();
        let found = (error.kind(), error.outcome());
        assert_eq!(found, (ErrorKind::InvalidArgument, Outcome::NotSent));
        assert!(error.to_string().contains(advice), "{error}");
    }
    assert!(etcd.namespace_exactly("").is_err());
    assert!(etcd.namespace_exactly("tenants/a").is_ok());
    let tenant = etcd.namespace("tenants/a/").unwrap();
    // The rules for keys are those of the cluster.
    for error in [
        tenant.get("").await.map(drop),
        tenant.put("", "v").await.map(drop),
        tenant.delete("").await.map(drop),
    ] {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::EmptyKey);
    }
    let backwards = tenant.get("b").range("a").await.unwrap_err();
    assert_eq!(backwards.kind(), ErrorKind::InvalidArgument);
}
