//! The list of a service's instances equals a read at the same revision, after single faults and during random faults.
//!
//! `CHAOS_SECS` sets the duration, `CHAOS_SEED` the seed, which the test prints.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    recipes::discovery::{Discovery, DiscoveryEvent, Instances, RegistrationEvent},
};
use testbed::{Chaos, ChaosKind, ChaosPath, Cluster, Fault, Link, PathKind};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::wait::{TEST_TIMEOUT, hold, until, until_async};

const SECOND: Duration = Duration::from_secs(1);
/// Long enough for the client to notice a fault and move to another member.
const FAULT_DURATION: Duration = Duration::from_millis(1500);

/// Keys and addresses.
type Listing = Vec<(String, String)>;

fn listing_of(instances: &Instances) -> Listing {
    let pair = |key: &[u8], addr: &str| (String::from_utf8_lossy(key).into_owned(), addr.into());
    instances
        .iter()
        .map(|found| pair(&found.key, &found.addr))
        .collect()
}

/// Reads the listing at a revision, or the newest for revision 0. Returns `None` if the read fails, for example after
/// a compaction.
async fn read(etcd: &Client, revision: i64) -> Option<Listing> {
    let found = etcd.get("web/").prefix().revision(revision).await.ok()?;
    let pair = |kv: &actix_etcd::proto::KeyValue| {
        let value: serde_json::Value = serde_json::from_slice(&kv.value).unwrap();
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        (key, value["Addr"].as_str().unwrap().to_owned())
    };
    Some(found.kvs.iter().map(pair).collect())
}

/// Repeats an idempotent write until it succeeds, because a change of the leader may make it fail.
async fn retry_write<T>(write: impl AsyncFn() -> actix_etcd::Result<T>) -> T {
    let limit = Instant::now() + 30 * SECOND;
    loop {
        match write().await {
            Ok(response) => return response,
            Err(error) => assert!(Instant::now() < limit, "{error}"),
        }
    }
}

/// Adds, changes and removes one instance each. Returns the revision of the last change.
async fn change_instances(etcd: &Client, round: usize) -> i64 {
    let value = |addr: &str| format!(r#"{{"Op":0,"Addr":"{addr}-{round}","Metadata":null}}"#);
    let new = format!("web/new-{round}");
    retry_write(async || etcd.put(new.clone(), value("new")).await).await;
    if round > 0 {
        let old = format!("web/new-{}", round - 1);
        retry_write(async || etcd.delete(old.clone()).await).await;
    }
    let last = retry_write(async || etcd.put("web/always", value("always")).await).await;
    last.header.revision
}

async fn assert_equals_fresh_read(
    context: &str,
    etcd: &Client,
    discovery: &Discovery,
    revision: i64,
) {
    until(
        &format!("{context}: the list includes the last change"),
        || discovery.instances().revision() >= revision,
    )
    .await;
    let instances = discovery.instances();
    let same_revision = read(etcd, instances.revision()).await;
    assert_eq!(Some(listing_of(&instances)), same_revision, "{context}");
    until_async(
        &format!("{context}: the list equals a fresh read"),
        async || read(etcd, 0).await == Some(listing_of(&discovery.instances())),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_equals_fresh_read_after_each_fault() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    // A client with a single endpoint cannot move to another member.
    let pinned_client = Client::connect([cluster.endpoints()[0].clone()])
        .await
        .unwrap();
    let others = &cluster.direct_endpoints()[1..];
    let writer = Client::connect(others.to_vec()).await.unwrap();
    let lists = [
        ("three endpoints", etcd.discover("web").await.unwrap()),
        ("one endpoint", pinned_client.discover("web").await.unwrap()),
    ];
    let first = cluster.member(0);
    let for_each_link = |act: &dyn Fn(&Link)| {
        for member in cluster.members() {
            act(member.client_link());
        }
    };
    let faults: [(&str, &dyn Fn()); 7] = [
        ("no fault", &|| {}),
        ("killed", &|| first.kill()),
        ("frozen", &|| first.freeze()),
        ("isolated", &|| cluster.isolate(0)),
        ("all reset", &|| for_each_link(&|link| link.reset_now())),
        ("cut off", &|| {
            for_each_link(&|link| link.set(Fault::Freeze));
        }),
        ("cut off, compacted", &|| {
            for_each_link(&|link| link.set(Fault::Refuse));
        }),
    ];
    let mut round = 0;
    for (fault, inject) in faults {
        // Without a leader the writer would only wait.
        if cluster.leader().await == 0 {
            cluster.move_leader(1).await;
        }
        inject();
        let mut revision = 0;
        for _ in 0..3 {
            revision = change_instances(&writer, round).await;
            round += 1;
        }
        if fault.contains("compacted") {
            writer.compact(revision).await.unwrap();
        }
        hold(FAULT_DURATION).await;
        let after = change_instances(&writer, round).await;
        round += 1;
        if fault.contains("cut off") {
            for (name, list) in &lists {
                let stale = list.instances().revision();
                assert!(
                    stale < revision,
                    "{fault}, {name}: the client was not cut off"
                );
            }
        }
        cluster.heal();
        cluster.start_all().await;
        for (name, list) in &lists {
            assert_equals_fresh_read(&format!("{fault}, {name}"), &writer, list, after).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_includes_changes_made_while_opening() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let writer = Client::connect(cluster.direct_endpoints()).await.unwrap();
    // The delay leaves time for many changes between the read and the watch that follows.
    let slow_link = Fault::Delay(SECOND / 10);
    cluster.member(0).client_link().set(slow_link);
    let opening = tokio::spawn(etcd.discover("web").into_future());
    let mut round = 0;
    while !opening.is_finished() {
        change_instances(&writer, round).await;
        round += 1;
    }
    let list = opening.await.unwrap().unwrap();
    let last = change_instances(&writer, round).await;
    assert_equals_fresh_read("opened over a slow link", &writer, &list, last).await;
}

/// Applies the changes of every event to a listing, and checks that the result equals the list of that event. Returns
/// the number of events and the last listing.
async fn apply_changes(mut discovery: Discovery) -> (usize, Listing) {
    let mut listing = Listing::new();
    let mut events = 0;
    while let Some(DiscoveryEvent::Changed(change)) = discovery.next().await {
        events += 1;
        let key = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        for gone in change.left.iter().chain(&change.changed) {
            listing.retain(|(listed, _)| *listed != key(&gone.key));
        }
        for new in change.joined.iter().chain(&change.changed) {
            listing.push((key(&new.key), new.addr.clone()));
        }
        listing.sort();
        assert_eq!(listing, listing_of(&change.instances));
    }
    (events, listing)
}

async fn check_list(path: PathKind) {
    let cluster = Cluster::start(3).await;
    let path = ChaosPath::open(path, &cluster).await;
    let observer = Client::connect(path.endpoints()).await.unwrap();
    let reader = Client::connect(path.endpoints()).await.unwrap();
    let list = observer.discover("web").await.unwrap();
    let applied_changes = tokio::spawn(apply_changes(list.clone()));
    let mut registrations = Vec::new();
    let mut clients = Vec::new();
    for n in 0..4 {
        let etcd = Client::connect(path.endpoints()).await.unwrap();
        let registration = etcd
            .register("web", format!("permanent-{n}"))
            .ttl(2 * SECOND);
        registrations.push(registration.await.unwrap());
        clients.push(etcd);
    }
    let guests = Client::connect(path.endpoints()).await.unwrap();
    let churn = tokio::spawn(async move {
        for n in 0.. {
            let guest = guests.register("web", format!("guest-{}", n % 5));
            // Some guests are unregistered, some are dropped, some fail to register.
            if let Ok(guest) = guest.ttl(2 * SECOND).await {
                tokio::time::sleep(SECOND / 10).await;
                if n % 2 == 0 {
                    let _ = guest.unregister().await;
                }
            }
        }
    });
    let comparisons = Arc::new(AtomicUsize::new(0));
    let shared = (list.clone(), reader.clone(), comparisons.clone());
    let comparing = tokio::spawn(async move {
        let (list, reader, comparisons) = shared;
        loop {
            let instances = list.instances();
            if let Some(read) = read(&reader, instances.revision()).await {
                assert_eq!(listing_of(&instances), read, "{}", instances.revision());
                comparisons.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(SECOND / 50).await;
        }
    });
    // Up to all members fail at once, for longer than a lease, so that instances have to register again.
    let chaos = Chaos::from_env(&format!("discovery, {}", path.kind().name()));
    let faults = chaos
        .max_faulty_members(3)
        .fault_duration(SECOND / 5, 4 * SECOND)
        .run_through(&path, &cluster, &ChaosKind::ALL)
        .await;
    churn.abort();
    let permanent: Vec<_> = (0..4).map(|n| format!("permanent-{n}")).collect();
    until_async("exactly the permanent instances are listed", async || {
        let fresh = read(&reader, 0).await.unwrap_or_default();
        fresh.iter().map(|(_, addr)| addr).eq(&permanent)
    })
    .await;
    let limit = Instant::now() + TEST_TIMEOUT;
    loop {
        let (fresh, instances) = (read(&reader, 0).await, list.instances());
        if fresh == Some(listing_of(&instances)) {
            break;
        }
        assert!(
            Instant::now() < limit,
            "the list at revision {} does not become equal to a read of {fresh:?} at revision {}: {instances:?}, {:?}",
            instances.revision(),
            cluster.revision().await,
            observer.connectivity()
        );
        tokio::time::sleep(SECOND / 50).await;
    }
    assert!(!comparing.is_finished(), "{:?}", comparing.await);
    comparing.abort();
    observer.shutdown().await;
    let (events, listing) = applied_changes.await.unwrap();
    let last = list.instances();
    assert_eq!(listing, listing_of(&last));
    until_async("the last list equals a read at its revision", async || {
        read(&reader, last.revision()).await.as_ref() == Some(&listing)
    })
    .await;
    let comparisons = comparisons.load(Ordering::Relaxed);
    println!("{faults}, {events} events, {comparisons} comparisons");
    assert!(comparisons > 0, "the list was never compared with a read");
    assert!(events > 1, "the observer received no change");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_equals_read_during_random_faults() {
    check_list(PathKind::Direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_equals_read_through_tcp_balancer() {
    check_list(PathKind::TcpBalancer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_equals_read_through_grpc_proxies() {
    check_list(PathKind::GrpcProxy).await;
}

#[tokio::test]
async fn update_during_outage_ends_at_its_deadline() {
    let cluster = Cluster::start(1).await;
    let builder = Client::builder(cluster.endpoints()).request_timeout(SECOND);
    let etcd = builder.connect().await.unwrap();
    let register = etcd.register("web", "a:1").ttl(2 * SECOND);
    let registration = register.await.unwrap();
    let mut events = registration.events();
    cluster.member(0).kill();
    let lapsed = async {
        while let Some(event) = events.next().await {
            if matches!(event, RegistrationEvent::Lapsed(_)) {
                return;
            }
        }
        panic!("the registration ended");
    };
    timeout(TEST_TIMEOUT, lapsed).await.unwrap();
    let update = registration.update("b:2", serde_json::Value::Null);
    let error = timeout(TEST_TIMEOUT, update).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert_eq!(error.outcome(), Outcome::NotSent);
    // The update that failed is not applied afterwards, and the next one is.
    cluster.start_all().await;
    let list = etcd.discover("web").wait().await.unwrap();
    until("the instance is listed again", || {
        !list.instances().is_empty()
    })
    .await;
    assert_eq!(list.instances()[0].addr, "a:1");
    retry_write(async || registration.update("c:3", serde_json::Value::Null).await).await;
    until("the update is listed", || {
        list.instances()
            .iter()
            .any(|instance| instance.addr == "c:3")
    })
    .await;
}
