//! The six promises of a watch, while actors panic under load.

use std::cell::Cell;

use actix_etcd::{
    Client, WatchEvent,
    test_faults::{crash_connection_now, crash_watch, crash_watch_hub, crash_watch_streams},
    watch::WatchEnd,
};
use testbed::{
    Cluster,
    validators::{Record, Request},
};

use crate::{
    support::{
        wait::until_async,
        watch_record::{Load, PROGRESS, Recorded, bookmarks, truth},
    },
    watch::operations::{item, last_item, next},
};

type CrashWatch = Box<dyn Fn() + Send>;

/// How often an actor is crashed. Every panic in a row makes its supervisor wait longer, up to a second, while what it
/// is told piles up: a machine that needs more time for the writes must not make it panic more often.
const CRASHES: usize = 8;
/// How many writes there are between two crashes at the least.
const WRITES: i64 = 25;

/// Crashes something now and then while writes go on; gives all that the watches told.
async fn under_load(crash: impl AsyncFn(&Client, &[CrashWatch])) -> Vec<Vec<Record>> {
    let cluster = Cluster::builder().members(3);
    let cluster = cluster.progress_notify_interval(PROGRESS).start().await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let mut watches = Vec::new();
    let mut actors: Vec<CrashWatch> = Vec::new();
    for n in 0..6 {
        let request = Request::prefix("k/", n % 2);
        let open = etcd.watch("k/").prefix().status_events().progress_notify();
        let watch = open.start_revision(n % 2).await.unwrap();
        actors.push(Box::new(crash_watch(&watch)));
        watches.push(Recorded::read(&format!("watch {n}"), watch, request));
    }
    let load = Load::start(&etcd);
    for _ in 0..CRASHES {
        let writes = cluster.revision().await + WRITES;
        let go_on = async || cluster.revision().await >= writes;
        until_async("writes go on", go_on).await;
        crash(&etcd, &actors).await;
    }
    let last = load.stop(&etcd).await;
    let history = truth(&cluster).await;
    let mut told = Vec::new();
    for watch in watches {
        told.push(watch.check(last, &history).await);
    }
    let progress: usize = told.iter().map(|records| bookmarks(records)).sum();
    assert!(progress > 0, "no progress was told under load");
    etcd.shutdown().await;
    told
}

#[tokio::test]
async fn a_panic_of_the_watch_actor_costs_nothing() {
    let told = under_load(async |_, actors| actors.iter().for_each(|crash| crash())).await;
    for records in told {
        assert!(records.contains(&Record::Disconnected), "it was told");
        assert!(records.contains(&Record::Resumed), "nothing was crashed");
    }
}

#[tokio::test]
async fn a_panic_of_the_streams_actor_costs_nothing() {
    let told = under_load(async |etcd, _| crash_watch_streams(etcd)).await;
    for records in told {
        assert!(records.contains(&Record::Resumed), "nothing was crashed");
    }
}

#[tokio::test]
async fn a_panic_of_the_hub_costs_nothing() {
    let rounds = Cell::new(0);
    let told = under_load(async |etcd, _| {
        rounds.set(rounds.get() + 1);
        if rounds.get() % 2 == 0 {
            crash_watch_streams(etcd);
            assert!(crash_watch_hub(etcd).await, "it did not panic");
        }
    })
    .await;
    for records in told {
        assert!(records.contains(&Record::Resumed), "nothing was crashed");
    }
}

#[tokio::test]
async fn a_panic_of_the_connections_actor_costs_nothing() {
    under_load(async |etcd, _| {
        for endpoint in etcd.endpoints() {
            let crashed = crash_connection_now(etcd, &endpoint).await;
            assert!(crashed.unwrap(), "it did not panic");
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
    assert!(crash_watch_hub(&etcd).await);
    etcd.put("k", "v").await.unwrap();
    next(&mut watch).await;
    let mut second = etcd.watch("k").await.unwrap();
    etcd.put("k", "w").await.unwrap();
    assert!(matches!(item(&mut second).await, WatchEvent::Events(_)));
    crash();
    etcd.shutdown().await;
    assert!(matches!(last_item(&mut watch).await, WatchEnd::Shutdown));
    assert!(matches!(last_item(&mut second).await, WatchEnd::Shutdown));
}
