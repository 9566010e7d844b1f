//! Mirrors while the clusters fail at random, and the mirror itself is killed and started again.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the tests print.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, WatchEvent, kv::put, layers::mirror::MirrorState};
use fastrand::Rng;
use testbed::{Change, Chaos, ChaosKind, Cluster};
use tokio::{task::JoinHandle, time::sleep};

use crate::support::{wait::until_async, watch_items::next_item, write_load::put_until_ok};

/// Faults of one member, and of its clients.
const FAULTS: [ChaosKind; 6] = [
    ChaosKind::Kill,
    ChaosKind::Freeze,
    ChaosKind::ClientReset,
    ChaosKind::ClientFreeze,
    ChaosKind::ClientRefuse,
    ChaosKind::ClientHalfOpen,
];

/// The values of each key in order, without the prefix; `None` for a delete.
type Values = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

/// Short faults, so that the clusters are available most of the time.
fn sparse_faults(chaos: Chaos) -> Chaos {
    let (short, long) = (Duration::from_millis(100), Duration::from_millis(1200));
    let chaos = chaos.fault_duration(short, long);
    chaos.pause_between_faults(short, long)
}

/// Writes each value at most once: single keys, deletes, and transactions of few and of many keys.
async fn write_until(etcd: Client, stop: Arc<AtomicBool>) {
    let mut n = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let timeout = Duration::from_millis(500);
        let key = |number: u64| format!("app/{number:03}");
        // Failed writes may have been applied. The history of the cluster shows it.
        let _ = match n % 10 {
            0 => etcd
                .delete(key(n * 7 % 13))
                .timeout(timeout)
                .await
                .map(drop),
            1 => {
                let many: Vec<_> = (0..128)
                    .map(|number| put(key(number), n.to_string()))
                    .collect();
                etcd.txn().then(many).timeout(timeout).await.map(drop)
            }
            2..5 => {
                let few = [1, 2, 5].map(|number| put(key(number), n.to_string()));
                etcd.txn().then(few).timeout(timeout).await.map(drop)
            }
            _ => etcd
                .put(key(n * 7 % 13), n.to_string())
                .timeout(timeout)
                .await
                .map(drop),
        };
        sleep(Duration::from_millis(3)).await;
    }
}

/// Kills the mirror from time to time, and starts a new one with clients of its own. Returns how often it was killed.
async fn mirror_until(
    source: Vec<String>,
    destination: Vec<String>,
    mut rng: Rng,
    stop: Arc<AtomicBool>,
) -> usize {
    let mut killed = 0;
    let mut replaced = None;
    let connect = async |endpoints: &[String]| {
        let client = Client::builder(endpoints.to_vec()).request_timeout(Duration::from_secs(1));
        client.connect().await
    };
    while !stop.load(Ordering::Relaxed) {
        let (Ok(from), Ok(to)) = (connect(&source).await, connect(&destination).await) else {
            continue;
        };
        let mirror = from.mirror("app/").to(&to, "copy/");
        let mirror = match mirror.start().await {
            Ok(mirror) => mirror,
            Err(error) if error.is_transient() => continue,
            Err(error) => panic!("the mirror did not start: {error}"),
        };
        // Half of the mirrors run on beside their successor, which ends them.
        drop(replaced.take());
        tokio::select! {
            end = mirror.ended() => panic!("the mirror ended: {end:?}"),
            () = sleep(Duration::from_millis(rng.u64(50..1500))) => {}
        }
        if rng.bool() {
            replaced = Some((mirror, from, to));
        }
        killed += 1;
    }
    killed
}

fn values_of_keys(changes: &[Change], prefix: &str) -> Values {
    let mut values = Values::new();
    for change in changes {
        let key = change.key[prefix.len()..].to_vec();
        values.entry(key).or_default().push(change.value.clone());
    }
    values
}

/// Each value was written at one revision of the source, so it must appear at one revision of the destination, on all
/// its keys.
fn assert_revisions_are_whole(changes: &[Change]) {
    let mut revisions: HashMap<&[u8], HashSet<i64>> = HashMap::new();
    for change in changes {
        if let Some(value) = &change.value {
            revisions.entry(value).or_default().insert(change.revision);
        }
    }
    let split: Vec<_> = revisions
        .iter()
        .filter(|(_, revisions)| revisions.len() > 1)
        .collect();
    assert!(split.is_empty(), "revisions were split: {split:?}");
}

/// Starts a mirror of an empty prefix, and drops it when it follows: later mirrors copy every change.
async fn copy_empty_base(source: &Client, destination: &Client) {
    let mirror = source.mirror("app/").to(destination, "copy/").start();
    let mirror = mirror.await.unwrap();
    until_async("the base is copied", async || {
        matches!(mirror.state(), MirrorState::Following)
    })
    .await;
}

/// Writes a last key, and waits until a mirror has copied it.
async fn copy_last_key(source: &Client, destination: &Client) {
    let last = put_until_ok(source, "app/last", "last").await;
    let mirror = source.mirror("app/").to(destination, "copy/").wait();
    let mirror = mirror.start().await.unwrap();
    mirror.applied(last).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_mirror_copies_every_revision_once_under_random_faults() {
    let chaos = sparse_faults(Chaos::from_env("mirror"));
    let (source, destination) = (Cluster::start(1).await, Cluster::start(3).await);
    let (from, to) = (source.endpoints(), destination.endpoints());
    let writer = Client::connect(from.clone()).await.unwrap();
    let observer = Client::connect(to.clone()).await.unwrap();
    copy_empty_base(&writer, &observer).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write_until(writer.clone(), stop.clone()));
    let rng = Rng::with_seed(chaos.seed());
    let mirroring = tokio::spawn(mirror_until(from, to, rng, stop.clone()));
    let seed = chaos.seed().wrapping_add(1);
    let other = sparse_faults(Chaos::new("destination", seed, chaos.duration()));
    let (first, second) = tokio::join!(
        chaos.run(&source, &FAULTS),
        other.run(&destination, &ChaosKind::ALL),
    );
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    let killed = mirroring.await.unwrap();
    copy_last_key(&writer, &observer).await;
    let (written, copied) = (
        source.history("app/").await,
        destination.history("copy/").await,
    );
    println!(
        "{} changes, {} faults, {killed} mirrors killed",
        written.len(),
        first.len() + second.len()
    );
    assert!(written.len() > 100, "the writer was stuck");
    assert_eq!(
        values_of_keys(&copied, "copy/"),
        values_of_keys(&written, "app/")
    );
    assert_revisions_are_whole(&copied);
}

/// Records the changes of the source up to the key `app/last`, which is written last.
async fn record_changes(etcd: &Client) -> JoinHandle<Values> {
    let mut watch = etcd.watch("app/").prefix().await.unwrap();
    tokio::spawn(async move {
        let mut values = Values::new();
        while !values.contains_key(&b"last"[..]) {
            let events = match next_item(&mut watch).await {
                WatchEvent::Events(events) => events,
                WatchEvent::Ended(end) => panic!("{end}"),
                _ => continue,
            };
            for event in &events {
                let value = event.is_put().then(|| event.value().to_vec());
                let key = event.key()["app/".len()..].to_vec();
                values.entry(key).or_default().push(value);
            }
        }
        values
    })
}

/// The mirror often finds its next revision compacted, and copies the base again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compacted_source_is_copied_in_order_under_random_faults() {
    let chaos = sparse_faults(Chaos::from_env("mirror of compacted source"));
    let (source, destination) = (Cluster::start(1).await, Cluster::start(1).await);
    let (from, to) = (source.endpoints(), destination.endpoints());
    let writer = Client::connect(from.clone()).await.unwrap();
    let observer = Client::connect(to.clone()).await.unwrap();
    copy_empty_base(&writer, &observer).await;
    let recording = record_changes(&writer).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write_until(writer.clone(), stop.clone()));
    let rng = Rng::with_seed(chaos.seed());
    let mirroring = tokio::spawn(mirror_until(from, to, rng, stop.clone()));
    let (compacter, stop_compacting) = (writer.clone(), stop.clone());
    let compacting = tokio::spawn(async move {
        while !stop_compacting.load(Ordering::Relaxed) {
            let newest = compacter.get("app/").await.unwrap().header.revision;
            // Fails if nothing was written since.
            let _ = compacter.compact(newest).await;
            sleep(Duration::from_millis(200)).await;
        }
    });
    let faults = chaos.run(&destination, &FAULTS).await;
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    compacting.await.unwrap();
    let killed = mirroring.await.unwrap();
    copy_last_key(&writer, &observer).await;
    let written = recording.await.unwrap();
    let copied = values_of_keys(&destination.history("copy/").await, "copy/");
    println!("{} faults, {killed} mirrors killed", faults.len());
    let mut skipped = 0;
    for (key, values) in &copied {
        // Each change is one of the source, in order, and no change appears twice.
        let mut rest = written[key].iter();
        for value in values {
            let found = rest.any(|written| written == value);
            assert!(found, "{value:?} of {key:?} is out of order");
        }
        skipped += written[key].len() - values.len();
    }
    println!("{skipped} changes were compacted before they were copied");
    let last = |values: &Values| -> BTreeMap<_, _> {
        let last = |values: &Vec<Option<Vec<u8>>>| values.last().cloned().flatten();
        let entries = values
            .iter()
            .map(|(key, values)| (key.clone(), last(values)));
        entries.filter(|(_, value)| value.is_some()).collect()
    };
    assert_eq!(last(&copied), last(&written));
}
