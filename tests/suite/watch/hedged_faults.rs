//! Hedged watches while one of their members fails.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_etcd::{Client, WatchEvent};
use testbed::{
    Chaos, ChaosKind, Cluster, Fault,
    validators::{self, Record, Request},
};
use tokio::{task::JoinHandle, time::Instant};

use crate::support::{
    connected_cluster::connect,
    leg_members::wait_for_legs,
    wait::hold,
    watch_items::next_item,
    watch_recorder::{WatchRecorder, actual_history, start_with_progress, to_record},
    write_load::WriteLoad,
};

/// How long a fault lasts: longer than a plain watch needs to leave the member.
const FAULT_DURATION: Duration = Duration::from_secs(5);
/// Limit of the lateness. The requirement is 100 ms, which `benches/watch_lateness` checks; this has room for a busy
/// machine and is still shorter than the time to leave a frozen or cut-off member.
const MAX_LATENESS: Duration = Duration::from_secs(1);

/// Delay of a slow link.
const LINK_DELAY: Duration = Duration::from_secs(2);

/// Times at which writes were acknowledged, by revision.
type Acknowledged = Arc<Mutex<HashMap<i64, Instant>>>;

/// Writes without pause until the task is aborted.
fn write_steadily(writer: Client, acknowledged: Acknowledged) -> JoinHandle<()> {
    tokio::spawn(async move {
        for n in 0_u64.. {
            let put = writer.put(format!("k/{}", n % 10), n.to_string());
            if let Ok(response) = put.await {
                let revision = response.header.revision;
                let mut acknowledged = acknowledged.lock().unwrap();
                acknowledged.insert(revision, Instant::now());
            }
            hold(Duration::from_millis(5)).await;
        }
    })
}

/// Injects a fault into each member of a hedged watch in turn, with a steady writer on the third member. Checks the
/// guarantees and the lateness of the watch, and that its consumer receives no `Disconnected`.
async fn check_fault(inject: impl Fn(&Cluster, usize), heal: impl AsyncFn(&Cluster, usize)) {
    let cluster = Cluster::start(3).await;
    let etcd = connect(cluster.endpoints()).await;
    let open = etcd.watch("k/").prefix().hedged().status_events();
    let mut watch = open.await.unwrap();
    let start = watch.revision();
    let legs = wait_for_legs(&cluster, 2).await;
    let third = (0..3).find(|member| !legs.contains(member)).unwrap();
    cluster.move_leader(third).await;
    let endpoint = cluster.member(third).direct_endpoint();
    let writer = connect([endpoint]).await;
    let acknowledged = Acknowledged::default();
    let arrived = Acknowledged::default();
    let load = write_steadily(writer.clone(), acknowledged.clone());
    let arrivals = arrived.clone();
    let (last_revision, mut last) = tokio::sync::watch::channel(i64::MAX);
    let reader = tokio::spawn(async move {
        let mut records = Vec::new();
        while watch.revision() < *last.borrow() {
            let item = tokio::select! {
                item = next_item(&mut watch) => item,
                _ = last.changed() => continue,
            };
            if let WatchEvent::Events(events) = &item {
                let mut arrivals = arrivals.lock().unwrap();
                arrivals.insert(events.revision(), Instant::now());
            }
            records.extend(to_record(item));
        }
        records
    });
    let mut faults = Vec::new();
    for leg in legs {
        let from = Instant::now();
        inject(&cluster, leg);
        hold(FAULT_DURATION).await;
        faults.push((from, Instant::now()));
        // The last writes of the fault arrive before it ends.
        hold(MAX_LATENESS).await;
        heal(&cluster, leg).await;
        cluster.heal();
        wait_for_legs(&cluster, 2).await;
        // The bytes that a slow link has delayed arrive before the other member fails.
        hold(LINK_DELAY).await;
    }
    load.abort();
    let last = loop {
        // Repeating a write with an unknown outcome is harmless here.
        if let Ok(put) = writer.put("k/last", "").await {
            break put.header.revision;
        }
    };
    last_revision.send_replace(last);
    let records = reader.await.unwrap();
    let history = actual_history(&cluster).await;
    validators::all(&Request::prefix("k/", start + 1), &records, &history).unwrap();
    assert!(!records.contains(&Record::Disconnected), "an interruption");
    let take = |times: &Acknowledged| std::mem::take(&mut *times.lock().unwrap());
    let (acknowledged, arrived) = (take(&acknowledged), take(&arrived));
    for (from, to) in faults {
        let during = acknowledged
            .iter()
            .filter(|(_, at)| (from..to).contains(*at));
        let lateness =
            during.map(|(revision, at)| arrived[revision].saturating_duration_since(*at));
        let latest = lateness.max().expect("writes during the fault");
        println!("latest event: {latest:?}");
        assert!(latest < MAX_LATENESS, "an event was {latest:?} late");
    }
    etcd.shutdown().await;
    writer.shutdown().await;
}

async fn nothing_to_restart(_: &Cluster, _: usize) {}

#[tokio::test]
async fn killed_member_delays_no_hedged_event() {
    let restart = async |cluster: &Cluster, leg| cluster.member(leg).start().await;
    check_fault(|cluster, leg| cluster.member(leg).kill(), restart).await;
}

#[tokio::test]
async fn frozen_member_delays_no_hedged_event() {
    let thaw = async |cluster: &Cluster, leg| cluster.member(leg).thaw();
    check_fault(|cluster, leg| cluster.member(leg).freeze(), thaw).await;
}

#[tokio::test]
async fn frozen_link_delays_no_hedged_event() {
    let freeze = |cluster: &Cluster, leg| cluster.member(leg).client_link().set(Fault::Freeze);
    check_fault(freeze, nothing_to_restart).await;
}

#[tokio::test]
async fn isolated_member_delays_no_hedged_event() {
    check_fault(Cluster::isolate, nothing_to_restart).await;
}

#[tokio::test]
async fn slow_member_delays_no_hedged_event() {
    let slow_down = |cluster: &Cluster, leg| {
        let link = cluster.member(leg).client_link().clone();
        link.set(Fault::Delay(LINK_DELAY));
    };
    check_fault(slow_down, nothing_to_restart).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hedged_watch_keeps_guarantees_under_random_faults() {
    let cluster = start_with_progress().await;
    let etcd = connect(cluster.endpoints()).await;
    let mut recorders = Vec::new();
    for (name, request) in [
        ("prefix", Request::prefix("k/", 0)),
        ("prefix from the start", Request::prefix("k/", 1)),
        ("key", Request::key("k/0", 0)),
    ] {
        let open = etcd.watch(request.key.clone());
        let open = match request.range_end.clone() {
            Some(end) => open.range(end),
            None => open,
        };
        let open = open.start_revision(request.start_revision).hedged();
        let watch = open.status_events().progress_notify().await.unwrap();
        recorders.push(WatchRecorder::record(name, watch, request));
    }
    let open = etcd.watch("k/").prefix().hedged().prev_kv().buffer(20);
    let watch = open.status_events().filter_deletes().await.unwrap();
    let request = Request {
        prev_kv: true,
        no_deletes: true,
        ..Request::prefix("k/", 0)
    };
    recorders.push(WatchRecorder::record("puts, small buffer", watch, request));
    let load = WriteLoad::start(&etcd);
    let chaos = Chaos::from_env("hedged watch").max_faulty_members(2);
    let faults = chaos.run(&cluster, &ChaosKind::ALL).await;
    let last = load.stop(&etcd).await;
    let history = actual_history(&cluster).await;
    println!("{} faults, {last} revisions", faults.len());
    for recorder in recorders {
        recorder.check(last, &history).await;
    }
    etcd.shutdown().await;
}
