//! Live configurations: validation, defaults, rejected versions, files and messages.

use std::{sync::Arc, time::Duration};

use actix::Actor;
use actix_etcd::{
    Client, ErrorKind, Etcd,
    kv::put,
    layers::{
        cache::{CacheLag, CacheSnapshot},
        codec::Utf8,
        live_config::{ConfigChanges, ConfigEvent, LiveConfig, live_config},
    },
};
use testbed::Cluster;
use tokio::time::timeout;

use crate::support::{
    connected_cluster::{StartWithClient, connect},
    message_recorder::record_messages,
    snapshot_files::{FilePath, unconnected_client},
    wait::{TEST_TIMEOUT, until},
    write_load::put_until_ok,
};

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature of validations"
)]
fn not_zero(rate: &u32) -> Result<(), &'static str> {
    if *rate > 0 {
        Ok(())
    } else {
        Err("the rate is zero")
    }
}

async fn next<T: Send + Sync + std::fmt::Debug + 'static>(
    changes: &mut ConfigChanges<T>,
) -> ConfigEvent<T> {
    let event = timeout(TEST_TIMEOUT, changes.next()).await.unwrap();
    event.expect("the updates go on")
}

async fn next_value<T: Send + Sync + std::fmt::Debug + 'static>(
    changes: &mut ConfigChanges<T>,
) -> Arc<T> {
    match next(changes).await {
        ConfigEvent::Changed { value, .. } => value,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn value_follows_its_key_and_skips_rejected_versions() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("rate", "1").await.unwrap();
    let rate = etcd.live_config::<u32, Utf8>("rate").validate(not_zero);
    let rate = rate.await.unwrap();
    assert_eq!(*rate.get(), 1);
    let mut changes = rate.changed();
    let accepted = etcd.put("rate", "2").await.unwrap().header.revision;
    assert_eq!(*next_value(&mut changes).await, 2);
    for (value, reason) in [("0", "the rate is zero"), ("many", "cannot be decoded")] {
        let revision = etcd.put("rate", value).await.unwrap().header.revision;
        let ConfigEvent::Rejected(rejected) = next(&mut changes).await else {
            panic!("expected a rejection");
        };
        assert_eq!(
            (rejected.revision, &rejected.key[..]),
            (revision, &b"rate"[..])
        );
        assert!(rejected.to_string().contains(reason), "{rejected}");
        assert_eq!(*rate.get(), 2, "the last accepted value stays");
        assert_eq!(rate.revision(), accepted);
        assert_eq!(rate.rejected().unwrap().revision, revision);
    }
    etcd.delete("rate").await.unwrap();
    assert!(matches!(next(&mut changes).await, ConfigEvent::Rejected(_)));
    etcd.put("rate", "3").await.unwrap();
    assert_eq!(*next_value(&mut changes).await, 3);
    assert!(rate.rejected().is_none());
    assert!(!rate.freshness().is_behind());
    etcd.shutdown().await;
    assert!(matches!(next(&mut changes).await, ConfigEvent::Ended(_)));
    assert!(changes.next().await.is_none());
    assert_eq!(*rate.get(), 3);
}

#[tokio::test]
async fn default_is_used_while_the_key_is_absent() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let missing = etcd.live_config::<u32, Utf8>("rate").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::ConfigRejected);
    assert!(missing.to_string().contains("has no default"), "{missing}");
    let rate = etcd.live_config::<u32, Utf8>("rate").default_value(7);
    let rate = rate.await.unwrap();
    assert_eq!(*rate.get(), 7);
    etcd.put("rate", "1").await.unwrap();
    let found = timeout(TEST_TIMEOUT, rate.wait_until(|rate| *rate == 1)).await;
    found.unwrap().unwrap();
    etcd.delete("rate").await.unwrap();
    let found = timeout(TEST_TIMEOUT, rate.wait_until(|rate| *rate == 7)).await;
    found.unwrap().unwrap();
    etcd.shutdown().await;
}

#[tokio::test]
async fn first_version_that_is_rejected_fails_or_is_waited_for() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("rate", "0").await.unwrap();
    let open = || etcd.live_config::<u32, Utf8>("rate").validate(not_zero);
    let error = open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConfigRejected);
    assert!(error.to_string().contains("the rate is zero"), "{error}");
    let waiting = tokio::spawn(open().wait().into_future());
    etcd.put("rate", "5").await.unwrap();
    let rate = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    assert_eq!(*rate.unwrap().get(), 5);
    etcd.shutdown().await;
}

#[tokio::test]
async fn panic_of_validation_rejects_the_version() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("rate", "1").await.unwrap();
    let rate = etcd
        .live_config::<u32, Utf8>("rate")
        .validate(|rate: &u32| {
            assert!(*rate != 13, "a bug of the application");
            Ok::<(), &str>(())
        });
    let rate = rate.await.unwrap();
    etcd.put("rate", "13").await.unwrap();
    until("the version is rejected", || rate.rejected().is_some()).await;
    etcd.put("rate", "14").await.unwrap();
    let found = timeout(TEST_TIMEOUT, rate.wait_until(|rate| *rate == 14)).await;
    found.unwrap().unwrap();
    etcd.shutdown().await;
}

/// Two values that are always written together.
#[derive(Debug)]
struct Pair(u32, u32);

fn build_pair(keys: &CacheSnapshot) -> actix_etcd::Result<Pair> {
    let number = |key| {
        keys.get(key)
            .map_or(Ok(0), |entry| entry.decode::<u32, Utf8>())
    };
    Ok(Pair(number("pair/a")?, number("pair/b")?))
}

#[tokio::test]
async fn value_of_a_prefix_is_built_from_whole_revisions() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let pair = etcd
        .live_config_of_prefix("pair/", build_pair)
        .validate(|pair: &Pair| {
            if pair.0 == pair.1 {
                Ok(())
            } else {
                Err("half a write")
            }
        })
        .default_value(Pair(0, 0));
    let pair = pair.await.unwrap();
    for number in 1..=20 {
        let both = ["pair/a", "pair/b"].map(|key| put(key, number.to_string()));
        etcd.txn().then(both).await.unwrap();
        assert!(pair.rejected().is_none());
    }
    let found = timeout(TEST_TIMEOUT, pair.wait_until(|pair| pair.0 == 20)).await;
    assert_eq!(found.unwrap().unwrap().1, 20);
    assert!(pair.rejected().is_none());
    etcd.put("pair/a", "1").await.unwrap();
    until("the half is rejected", || pair.rejected().is_some()).await;
    assert_eq!(pair.get().0, 20);
    etcd.shutdown().await;
}

#[tokio::test]
async fn last_accepted_version_survives_a_restart() {
    let file = FilePath::new();
    let cluster = Cluster::start(1).await;
    let open = |etcd: &Client| {
        let rate = etcd.live_config::<u32, Utf8>("rate").validate(not_zero);
        rate.snapshot_file(&file.0).into_future()
    };
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.put("rate", "5").await.unwrap();
    let rate: LiveConfig<u32> = open(&etcd).await.unwrap();
    etcd.put("rate", "0").await.unwrap();
    until("the version is rejected", || rate.rejected().is_some()).await;
    rate.close().await;
    // The version in etcd is still rejected.
    let rate = open(&etcd).await.unwrap();
    assert_eq!(*rate.get(), 5);
    assert!(rate.rejected().is_some());
    assert!(rate.file_error().is_none());
    etcd.shutdown().await;
    cluster.member(0).kill();

    let etcd = unconnected_client(&cluster).await;
    let rate = open(&etcd).await.unwrap();
    assert_eq!(*rate.get(), 5);
    let freshness = rate.freshness();
    assert!(
        matches!(freshness.behind, Some(CacheLag::FromFile { .. })),
        "{freshness:?}"
    );
    cluster.start_all().await;
    put_until_ok(&etcd, "rate", "6").await;
    let found = timeout(TEST_TIMEOUT, rate.wait_until(|rate| *rate == 6)).await;
    found.unwrap().unwrap();
    etcd.shutdown().await;
}

#[actix::test]
async fn actor_receives_value_changes_and_rejections() {
    let (_cluster, client) = Cluster::start_with_client(1).await;
    client.put("rate", "1").await.unwrap();
    let etcd = Etcd::new(client.clone()).start();
    let (received, recipient) = record_messages::<ConfigEvent<u32>>();
    let rate = live_config::<u32, Utf8>("rate");
    let subscription = etcd.send(rate.clone().deliver_to(recipient)).await.unwrap();
    let count = || received.lock().unwrap().len();
    until("the value arrives", || count() == 1).await;
    client.put("rate", "2").await.unwrap();
    until("the change arrives", || count() == 2).await;
    client.put("rate", "two").await.unwrap();
    until("the rejection arrives", || count() == 3).await;
    client.put("rate", "3").await.unwrap();
    until("the last change arrives", || count() == 4).await;
    let current: LiveConfig<u32> = etcd.send(rate).await.unwrap().unwrap();
    assert_eq!(*current.get(), 3);
    client.shutdown().await;
    until("the end arrives", || count() == 5).await;
    let print = |event: &ConfigEvent<u32>| match event {
        ConfigEvent::Changed { value, .. } => value.to_string(),
        ConfigEvent::Rejected(_) => "rejected".to_owned(),
        ConfigEvent::Ended(_) => "ended".to_owned(),
        other => panic!("{other:?}"),
    };
    let received: Vec<String> = received.lock().unwrap().iter().map(print).collect();
    assert_eq!(received, ["1", "2", "rejected", "3", "ended"]);
    drop(subscription);
}

#[tokio::test]
async fn value_stays_current_while_the_application_blocks_its_thread() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("rate", "1").await.unwrap();
    let rate = etcd.live_config::<u32, Utf8>("rate").await.unwrap();
    let endpoints = cluster.endpoints();
    let writer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let etcd = connect(endpoints).await;
            etcd.put("rate", "2").await.unwrap();
        });
    });
    // Blocks the only thread of the test's runtime.
    writer.join().unwrap();
    let start = std::time::Instant::now();
    while *rate.get() != 2 && start.elapsed() < TEST_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(*rate.get(), 2);
    etcd.shutdown().await;
}
