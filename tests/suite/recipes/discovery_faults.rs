//! The list of a service's instances equals a fresh read at its revision, after each fault and during random ones.
//!
//! `CHAOS_SECS` and `CHAOS_SEED` say how long and from which seed; the seed is printed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{
    Client,
    recipes::discovery::{Discovery, DiscoveryEvent, Instances},
};
use testbed::{Chaos, ChaosKind, Cluster, Fault, Link};

use crate::support::wait::{hold, until, until_async};

const SECOND: Duration = Duration::from_secs(1);
/// Long enough that the client notices what is wrong and moves.
const NOTICED: Duration = Duration::from_millis(1500);

type Listed = Vec<(String, String)>;

fn listed(instances: &Instances) -> Listed {
    let pair = |key: &[u8], addr: &str| (String::from_utf8_lossy(key).into_owned(), addr.into());
    instances
        .iter()
        .map(|found| pair(&found.key, &found.addr))
        .collect()
}

/// The keys and addresses at a revision; 0 is now. `None` where nobody can be asked, or it was compacted away.
async fn read(etcd: &Client, revision: i64) -> Option<Listed> {
    let found = etcd.get("web/").prefix().revision(revision).await.ok()?;
    let pair = |kv: &actix_etcd::proto::KeyValue| {
        let value: serde_json::Value = serde_json::from_slice(&kv.value).unwrap();
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        (key, value["Addr"].as_str().unwrap().to_owned())
    };
    Some(found.kvs.iter().map(pair).collect())
}

/// Does a write that may be done twice until it is answered: a leader may just have changed.
async fn surely<T>(write: impl AsyncFn() -> actix_etcd::Result<T>) -> T {
    let limit = Instant::now() + 30 * SECOND;
    loop {
        match write().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < limit, "{error}"),
        }
    }
}

/// Changes the list: one instance is new, one is changed, one is gone. Gives the revision of the last change.
async fn shuffle(etcd: &Client, round: usize) -> i64 {
    let value = |addr: &str| format!(r#"{{"Op":0,"Addr":"{addr}-{round}","Metadata":null}}"#);
    let new = format!("web/new-{round}");
    surely(async || etcd.put(new.clone(), value("new")).await).await;
    if round > 0 {
        let old = format!("web/new-{}", round - 1);
        surely(async || etcd.delete(old.clone()).await).await;
    }
    let last = surely(async || etcd.put("web/always", value("always")).await).await;
    last.header.revision
}

async fn equals_a_fresh_read(what: &str, etcd: &Client, discovery: &Discovery, revision: i64) {
    until(&format!("{what}: the last change has arrived"), || {
        discovery.instances().revision() >= revision
    })
    .await;
    let instances = discovery.instances();
    let same_revision = read(etcd, instances.revision()).await;
    assert_eq!(Some(listed(&instances)), same_revision, "{what}");
    until_async(&format!("{what}: it equals a fresh read"), async || {
        read(etcd, 0).await == Some(listed(&discovery.instances()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_each_fault_the_list_equals_a_fresh_read() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    // This one has nobody else to turn to.
    let bound = Client::connect([cluster.endpoints()[0].clone()])
        .await
        .unwrap();
    let others = &cluster.direct_endpoints()[1..];
    let writer = Client::connect(others.to_vec()).await.unwrap();
    let lists = [
        ("free", etcd.discover("web").await.unwrap()),
        ("bound", bound.discover("web").await.unwrap()),
    ];
    let first = cluster.member(0);
    let links = |act: &dyn Fn(&Link)| {
        for member in cluster.members() {
            act(member.client_link());
        }
    };
    let faults: [(&str, &dyn Fn()); 7] = [
        ("nothing", &|| {}),
        ("killed", &|| first.kill()),
        ("frozen", &|| first.freeze()),
        ("isolated", &|| cluster.isolate(0)),
        ("all reset", &|| links(&|link| link.reset_now())),
        ("cut off", &|| links(&|link| link.set(Fault::Freeze))),
        ("cut off, compacted", &|| {
            links(&|link| link.set(Fault::Refuse));
        }),
    ];
    let mut round = 0;
    for (fault, strike) in faults {
        // A leader that is gone would only make the writer wait.
        if cluster.leader().await == 0 {
            cluster.move_leader(1).await;
        }
        strike();
        let mut revision = 0;
        for _ in 0..3 {
            revision = shuffle(&writer, round).await;
            round += 1;
        }
        if fault.contains("compacted") {
            writer.compact(revision).await.unwrap();
        }
        hold(NOTICED).await;
        let after = shuffle(&writer, round).await;
        round += 1;
        if fault.contains("cut off") {
            for (name, list) in &lists {
                let stale = list.instances().revision();
                assert!(stale < revision, "{fault}, {name}: it was not cut off");
            }
        }
        cluster.heal();
        cluster.start_all().await;
        for (name, list) in &lists {
            equals_a_fresh_read(&format!("{fault}, {name}"), &writer, list, after).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_while_a_list_is_opened_is_in_it() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let writer = Client::connect(cluster.direct_endpoints()).await.unwrap();
    // Between the answer to a read and the watch that follows it there is time for many changes.
    let far_away = Fault::Delay(SECOND / 10);
    cluster.member(0).client_link().set(far_away);
    let opening = tokio::spawn(etcd.discover("web").into_future());
    let mut round = 0;
    while !opening.is_finished() {
        shuffle(&writer, round).await;
        round += 1;
    }
    let list = opening.await.unwrap().unwrap();
    let last = shuffle(&writer, round).await;
    equals_a_fresh_read("opened far away", &writer, &list, last).await;
}

/// Follows the differences alone, and looks whether they come to the list.
async fn follow(mut discovery: Discovery) -> (usize, Listed) {
    let mut told = Listed::new();
    let mut changes = 0;
    while let Some(DiscoveryEvent::Changed(change)) = discovery.next().await {
        changes += 1;
        let key = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        for gone in change.left.iter().chain(&change.changed) {
            told.retain(|(had, _)| *had != key(&gone.key));
        }
        for new in change.joined.iter().chain(&change.changed) {
            told.push((key(&new.key), new.addr.clone()));
        }
        told.sort();
        assert_eq!(told, listed(&change.instances));
    }
    (changes, told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_members_and_links_fail_at_random_the_list_equals_a_read_at_its_revision() {
    let cluster = Cluster::start(3).await;
    let observer = Client::connect(cluster.endpoints()).await.unwrap();
    let reader = Client::connect(cluster.endpoints()).await.unwrap();
    let list = observer.discover("web").await.unwrap();
    let followed = tokio::spawn(follow(list.clone()));
    let mut registrations = Vec::new();
    let mut clients = Vec::new();
    for n in 0..4 {
        let etcd = Client::connect(cluster.endpoints()).await.unwrap();
        let registration = etcd.register("web", format!("stays-{n}")).ttl(2 * SECOND);
        registrations.push(registration.await.unwrap());
        clients.push(etcd);
    }
    let coming = Client::connect(cluster.endpoints()).await.unwrap();
    let churn = tokio::spawn(async move {
        for n in 0.. {
            let guest = coming.register("web", format!("guest-{}", n % 5));
            // Some are unregistered, some dropped, some never get there.
            if let Ok(guest) = guest.ttl(2 * SECOND).await {
                tokio::time::sleep(SECOND / 10).await;
                if n % 2 == 0 {
                    let _ = guest.unregister().await;
                }
            }
        }
    });
    let looks = Arc::new(AtomicUsize::new(0));
    let looking = (list.clone(), reader.clone(), looks.clone());
    let look = tokio::spawn(async move {
        let (list, reader, looks) = looking;
        loop {
            let instances = list.instances();
            if let Some(read) = read(&reader, instances.revision()).await {
                assert_eq!(listed(&instances), read, "{}", instances.revision());
                looks.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(SECOND / 50).await;
        }
    });
    // All members at once, for longer than a lease: instances must be registered again, too.
    let chaos = Chaos::from_env("discovery").max_faulty_members(3);
    let faults = chaos
        .fault_duration(SECOND / 5, 4 * SECOND)
        .run(&cluster, &ChaosKind::ALL)
        .await;
    churn.abort();
    let stay: Vec<_> = (0..4).map(|n| format!("stays-{n}")).collect();
    until_async("who stays is listed again, and nobody else", async || {
        let fresh = read(&reader, 0).await.unwrap_or_default();
        fresh.iter().map(|(_, addr)| addr).eq(&stay)
    })
    .await;
    until_async("the list equals a fresh read", async || {
        read(&reader, 0).await == Some(listed(&list.instances()))
    })
    .await;
    let fresh = read(&reader, 0).await.unwrap();
    assert!(!look.is_finished(), "{:?}", look.await);
    look.abort();
    observer.shutdown().await;
    let (changes, told) = followed.await.unwrap();
    assert_eq!(told, fresh);
    let looks = looks.load(Ordering::Relaxed);
    println!(
        "{} faults, {changes} changes told, {looks} looks",
        faults.len()
    );
    assert!(looks > 0, "nothing was compared");
    assert!(changes > 1, "nothing was told");
}
