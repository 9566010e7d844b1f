//! The six promises, while the actors themselves panic under load.

use std::time::Duration;

use testbed::{
    Cluster,
    validators::{Record, Request},
};

use super::{
    actor::WatchActor,
    hub::CrashStreams,
    watch_record::{Load, Recorded, truth},
};
use crate::{
    Client, WatchItem,
    supervisor::{Crash, live_actors},
};

/// Crashes something now and then while writes go on; gives all that the watches told.
async fn under_load(crash: impl AsyncFn(&Client, &[actix::Addr<WatchActor>])) -> Vec<Vec<Record>> {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watches = Vec::new();
    let mut actors = Vec::new();
    for n in 0..6 {
        let request = Request::prefix("k/", n % 2);
        let open = etcd.watch("k/").prefix().notices();
        let watch = open.start_revision(n % 2).await.unwrap();
        actors.push(watch.actor().clone());
        watches.push(Recorded::read(&format!("watch {n}"), watch, request));
    }
    let load = Load::start(&etcd);
    let mut crashes = 0;
    while crashes < 12 || cluster.revision().await < 200 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        crash(&etcd, &actors).await;
        crashes += 1;
    }
    let last = load.stop(&etcd).await;
    let history = truth(&cluster).await;
    let mut told = Vec::new();
    for watch in watches {
        told.push(watch.check(last, &history).await);
    }
    etcd.shutdown().await;
    told
}

#[tokio::test]
async fn a_panic_of_the_watch_actor_costs_nothing() {
    under_load(async |_, actors| {
        for actor in actors {
            actor.do_send(Crash);
        }
    })
    .await;
}

#[tokio::test]
async fn a_panic_of_the_streams_actor_costs_nothing() {
    let told = under_load(async |etcd, _| {
        // With the supervisor's pause between, there may be none to crash; over all there were.
        etcd.watches().send(CrashStreams).await.unwrap();
    })
    .await;
    for records in told {
        assert!(records.contains(&Record::Resumed), "nothing was crashed");
    }
}

#[tokio::test]
async fn a_panic_of_the_hub_costs_nothing() {
    under_load(async |etcd, _| {
        etcd.watches().do_send(Crash);
        etcd.watches().send(CrashStreams).await.unwrap();
        etcd.watches().do_send(Crash);
    })
    .await;
}

#[tokio::test]
async fn a_panic_of_the_connections_actor_costs_nothing() {
    under_load(async |etcd, _| {
        for connection in &etcd.caller().ready.load().ready {
            connection.crash();
        }
    })
    .await;
}

#[tokio::test]
async fn what_crashed_still_ends_with_the_client() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    watch.actor().do_send(Crash);
    etcd.watches().do_send(Crash);
    etcd.put("k", "v").await.unwrap();
    assert!(matches!(watch.next().await, Some(WatchItem::Events(_))));
    let before = live_actors();
    etcd.shutdown().await;
    assert!(live_actors() < before);
    let mut last = None;
    while let Some(item) = watch.next().await {
        last = Some(item);
    }
    assert!(matches!(
        last,
        Some(WatchItem::Ended(crate::WatchEnd::Shutdown))
    ));
}
