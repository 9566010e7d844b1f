//! Watches that share streams through etcd's gRPC proxy, which chooses watch ids itself.

use std::{collections::BTreeMap, time::Duration};

use actix_etcd::{Client, ErrorKind, Watch, WatchEvent, watch::WatchEnd};
use testbed::{Cluster, GrpcProxy};
use tokio::{task::JoinSet, time::timeout};

use crate::support::{
    auth_cluster::{connect_as_root, start_with_auth},
    wait::TEST_TIMEOUT,
    watch_items::{WATCH_TIMEOUT, next_change, read_to_end},
};

const WATCHES: usize = 100;

async fn start() -> (Cluster, GrpcProxy, Client) {
    let cluster = Cluster::start(1).await;
    let proxy = GrpcProxy::start(&cluster).await;
    // Opening many watches at once takes longer than the default timeout on a busy machine.
    let builder = Client::builder([proxy.endpoint()]).request_timeout(WATCH_TIMEOUT);
    let etcd = builder.connect().await.unwrap();
    (cluster, proxy, etcd)
}

fn key(n: usize) -> String {
    format!("k/{n:03}")
}

/// Opens one watch per key, all at the same time.
async fn open_watches(etcd: &Client, count: usize) -> Vec<Watch> {
    let mut opening = JoinSet::new();
    for n in 0..count {
        let open = etcd.watch(key(n)).into_future();
        opening.spawn(async move { (n, open.await.unwrap()) });
    }
    let watches: BTreeMap<usize, Watch> = opening.join_all().await.into_iter().collect();
    watches.into_values().collect()
}

/// Writes each key once and checks that each watch delivers the write of its key, and nothing else.
async fn check_own_events(cluster: &Cluster, watches: &mut [Watch]) {
    let direct = Client::connect(cluster.member_endpoints()).await.unwrap();
    let mut revisions = Vec::new();
    for n in 0..watches.len() {
        revisions.push(direct.put(key(n), "v").await.unwrap().header.revision);
    }
    for (n, watch) in watches.iter_mut().enumerate() {
        assert_eq!(next_change(watch).await, (revisions[n], vec![key(n)]));
    }
    direct.shutdown().await;
}

#[tokio::test]
async fn grpc_proxy_watches_deliver_only_own_events() {
    let (cluster, proxy, etcd) = start().await;
    let mut watches = open_watches(&etcd, WATCHES).await;
    check_own_events(&cluster, &mut watches).await;
    // The proxy responds out of order in some of the rounds.
    for round in 0..12 {
        if round % 4 == 3 {
            proxy.restart().await;
        } else {
            proxy.link().reset_now();
        }
        check_own_events(&cluster, &mut watches).await;
    }
    etcd.shutdown().await;
}

#[tokio::test]
async fn cancelled_watches_behind_grpc_proxy_leave_neighbours_alone() {
    let (cluster, _proxy, etcd) = start().await;
    let mut watches = open_watches(&etcd, 20).await;
    // Some of the opening watches are dropped before and some after the proxy creates them.
    for n in 0..20 {
        let open = etcd.watch(key(n)).into_future();
        let _ = timeout(Duration::from_micros(100) * n.try_into().unwrap(), open).await;
    }
    let dropped: Vec<Watch> = watches.split_off(10);
    drop(dropped);
    check_own_events(&cluster, &mut watches).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn equal_watches_through_grpc_proxy_all_deliver() {
    let (cluster, proxy, etcd) = start().await;
    let direct = Client::connect(cluster.member_endpoints()).await.unwrap();
    let first = direct.put("k", "0").await.unwrap().header.revision;
    // The proxy merges watches of the same range, and responds to some creates itself.
    let mut watches = Vec::new();
    for start_revision in [0, first, first + 1, 0, first, first + 1] {
        let open = etcd
            .watch("k")
            .start_revision(start_revision)
            .status_events();
        let mut watch = open.await.unwrap();
        if start_revision == first {
            assert_eq!(next_change(&mut watch).await.0, first);
        }
        watches.push(watch);
    }
    for round in 1..4 {
        let revision = direct.put("k", "v").await.unwrap().header.revision;
        for watch in &mut watches {
            loop {
                let item = timeout(WATCH_TIMEOUT, watch.next()).await.unwrap();
                match item.unwrap() {
                    WatchEvent::Events(events) => {
                        assert_eq!(events.revision(), revision, "round {round}");
                        break;
                    }
                    WatchEvent::Disconnected(_) | WatchEvent::Resumed => {}
                    other => panic!("round {round}: {other:?}"),
                }
            }
        }
        proxy.link().reset_now();
    }
    etcd.shutdown().await;
}

#[tokio::test]
async fn future_watch_behind_grpc_proxy_starts_there() {
    let (_cluster, _proxy, etcd) = start().await;
    let now = etcd.put("k", "0").await.unwrap().header.revision;
    let mut current = etcd.watch("k").await.unwrap();
    let mut future = etcd.watch("k").start_revision(now + 3).await.unwrap();
    for revision in now + 1..=now + 4 {
        etcd.put("k", "v").await.unwrap();
        assert_eq!(next_change(&mut current).await.0, revision);
    }
    assert_eq!(next_change(&mut future).await.0, now + 3);
    assert_eq!(next_change(&mut future).await.0, now + 4);
    etcd.shutdown().await;
}

#[tokio::test]
async fn refused_watches_behind_grpc_proxy_leave_neighbours_alone() {
    let cluster = start_with_auth(Cluster::builder()).await;
    cluster.add_user("ann", "word", Some("a/")).await;
    let proxy = GrpcProxy::start(&cluster).await;
    let etcd = Client::builder([proxy.endpoint()])
        .credentials("ann", "word")
        .request_timeout(WATCH_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let mut opening = JoinSet::new();
    for n in 0..40 {
        let key = format!("{}/{n}", if n % 2 == 0 { "a" } else { "b" });
        let open = etcd.watch(key.clone()).into_future();
        opening.spawn(async move { (key, open.await) });
    }
    let root = connect_as_root(&cluster).await;
    let opened = timeout(TEST_TIMEOUT, opening.join_all()).await.unwrap();
    for (key, watch) in opened {
        if key.starts_with("b/") {
            assert_eq!(watch.unwrap_err().kind(), ErrorKind::PermissionDenied);
            continue;
        }
        let revision = root.put(key.clone(), "v").await.unwrap().header.revision;
        assert_eq!(
            next_change(&mut watch.unwrap()).await,
            (revision, vec![key])
        );
    }
}

#[tokio::test]
async fn compacted_start_behind_proxy_ends_only_its_watch() {
    let (cluster, _proxy, etcd) = start().await;
    for _ in 0..5 {
        etcd.put("old", "v").await.unwrap();
    }
    let revision = etcd.put("old", "v").await.unwrap().header.revision;
    etcd.compact(revision).await.unwrap();
    let mut watches = open_watches(&etcd, 3).await;
    let mut compacted = etcd.watch("old").start_revision(2).await.unwrap();
    match read_to_end(&mut compacted).await {
        WatchEnd::Compacted { revision: oldest } => assert_eq!(oldest, revision),
        other => panic!("{other}"),
    }
    check_own_events(&cluster, &mut watches).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn oversized_event_behind_proxy_ends_only_its_watch() {
    let (cluster, proxy, direct) = start().await;
    // A watch alone on its stream has the id 0 on the proxy.
    for neighbours in [0, 3] {
        let etcd = Client::builder([proxy.endpoint()])
            .max_response_size(200_000)
            .connect()
            .await
            .unwrap();
        let mut large = etcd.watch("large").await.unwrap();
        let mut watches = open_watches(&etcd, neighbours).await;
        direct.put("large", vec![b'v'; 500_000]).await.unwrap();
        match read_to_end(&mut large).await {
            WatchEnd::Refused(error) => assert_eq!(error.kind(), ErrorKind::ResponseTooLarge),
            other => panic!("{other}"),
        }
        check_own_events(&cluster, &mut watches).await;
        etcd.shutdown().await;
    }
}
