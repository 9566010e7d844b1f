//! The six promises of a watch, while actors panic under load.

use std::{cell::Cell, time::Duration};

use actix_etcd::{
    Client, WatchEnd, WatchItem,
    testing::{crash_connection, crash_watch, crash_watch_hub, crash_watch_streams},
};
use testbed::{
    Cluster,
    validators::{Record, Request},
};

use crate::{
    watch::{item, last_item, next},
    watch_record::{Load, Recorded, truth},
};

type CrashWatch = Box<dyn Fn() + Send>;

/// How often an actor is crashed. Every panic in a row makes its supervisor wait longer, up to a second, while what it
/// is told piles up: a machine that needs more time for the writes must not make it panic more often.
const CRASHES: usize = 8;

/// Crashes something now and then while writes go on; gives all that the watches told.
async fn under_load(crash: impl Fn(&Client, &[CrashWatch])) -> Vec<Vec<Record>> {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watches = Vec::new();
    let mut actors: Vec<CrashWatch> = Vec::new();
    for n in 0..6 {
        let request = Request::prefix("k/", n % 2);
        let open = etcd.watch("k/").prefix().notices();
        let watch = open.start_revision(n % 2).await.unwrap();
        actors.push(Box::new(crash_watch(&watch)));
        watches.push(Recorded::read(&format!("watch {n}"), watch, request));
    }
    let load = Load::start(&etcd);
    let mut crashes = 0;
    while crashes < CRASHES || cluster.revision().await < 200 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if crashes < CRASHES {
            crash(&etcd, &actors);
            crashes += 1;
        }
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
    let told = under_load(|_, actors| actors.iter().for_each(|crash| crash())).await;
    for records in told {
        assert!(records.contains(&Record::Disconnected), "it was told");
        assert!(records.contains(&Record::Resumed), "nothing was crashed");
    }
}

#[tokio::test]
async fn a_panic_of_the_streams_actor_costs_nothing() {
    let told = under_load(|etcd, _| crash_watch_streams(etcd)).await;
    for records in told {
        assert!(records.contains(&Record::Resumed), "nothing was crashed");
    }
}

#[tokio::test]
async fn a_panic_of_the_hub_costs_nothing() {
    let rounds = Cell::new(0);
    let told = under_load(|etcd, _| {
        rounds.set(rounds.get() + 1);
        if rounds.get() % 2 == 0 {
            crash_watch_streams(etcd);
            crash_watch_hub(etcd);
        }
    })
    .await;
    for records in told {
        assert!(records.contains(&Record::Resumed), "nothing was crashed");
    }
}

#[tokio::test]
async fn a_panic_of_the_connections_actor_costs_nothing() {
    under_load(|etcd, _| {
        for endpoint in etcd.endpoints() {
            crash_connection(etcd, &endpoint).unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn what_crashed_goes_on_and_still_ends_with_the_client() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    let crash = crash_watch(&watch);
    crash();
    crash_watch_hub(&etcd);
    etcd.put("k", "v").await.unwrap();
    next(&mut watch).await;
    let mut second = etcd.watch("k").await.unwrap();
    etcd.put("k", "w").await.unwrap();
    assert!(matches!(item(&mut second).await, WatchItem::Events(_)));
    crash();
    etcd.shutdown().await;
    assert!(matches!(last_item(&mut watch).await, WatchEnd::Shutdown));
    assert!(matches!(last_item(&mut second).await, WatchEnd::Shutdown));
}
