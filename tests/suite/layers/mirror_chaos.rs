//! A mirror while both clusters fail at random, and the mirror itself is killed and started again.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, kv::put, layers::mirror::MirrorState};
use fastrand::Rng;
use testbed::{Change, Chaos, ChaosKind, Cluster};
use tokio::time::sleep;

use crate::support::{wait::until_async, write_load::put_until_ok};

/// Faults of one member, and of its clients.
const FAULTS: [ChaosKind; 6] = [
    ChaosKind::Kill,
    ChaosKind::Freeze,
    ChaosKind::ClientReset,
    ChaosKind::ClientFreeze,
    ChaosKind::ClientRefuse,
    ChaosKind::ClientHalfOpen,
];

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
    while !stop.load(Ordering::Relaxed) {
        let connect = async |endpoints: &[String]| {
            Client::builder(endpoints.to_vec())
                .request_timeout(Duration::from_secs(1))
                .connect()
                .await
        };
        let (Ok(from), Ok(to)) = (connect(&source).await, connect(&destination).await) else {
            continue;
        };
        let Ok(mirror) = from.mirror("app/").to(&to, "copy/").start().await else {
            continue;
        };
        // Half of the mirrors run on beside their successor, which ends them.
        drop(replaced.take());
        tokio::select! {
            end = mirror.ended() => panic!("the mirror ended: {end:?}"),
            () = sleep(Duration::from_millis(rng.u64(100..2500))) => {}
        }
        if rng.bool() {
            replaced = Some((mirror, from, to));
        }
        killed += 1;
    }
    killed
}

/// Returns the values of each key in order, without the prefix; `None` for a delete.
fn values_of_keys(changes: &[Change], prefix: &str) -> BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>> {
    let mut values: BTreeMap<_, Vec<_>> = BTreeMap::new();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_mirror_copies_every_revision_once_under_random_faults() {
    let (short, long) = (Duration::from_millis(100), Duration::from_millis(1200));
    let sparse = |chaos: Chaos| {
        chaos
            .fault_duration(short, long)
            .pause_between_faults(short, long)
    };
    let chaos = sparse(Chaos::from_env("mirror"));
    let (source, destination) = (Cluster::start(1).await, Cluster::start(3).await);
    let (from, to) = (source.endpoints(), destination.endpoints());
    // The base is empty, so that the destination gets every later change.
    let writer = Client::connect(from.clone()).await.unwrap();
    let observer = Client::connect(to.clone()).await.unwrap();
    let first = writer
        .mirror("app/")
        .to(&observer, "copy/")
        .start()
        .await
        .unwrap();
    until_async("the base is copied", async || {
        matches!(first.state(), MirrorState::Following)
    })
    .await;
    drop(first);
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write_until(writer.clone(), stop.clone()));
    let rng = Rng::with_seed(chaos.seed());
    let mirroring = tokio::spawn(mirror_until(from, to, rng, stop.clone()));
    let seed = chaos.seed().wrapping_add(1);
    let other = sparse(Chaos::new("destination", seed, chaos.duration()));
    let (first, second) = tokio::join!(
        chaos.run(&source, &FAULTS),
        other.run(&destination, &ChaosKind::ALL),
    );
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    let killed = mirroring.await.unwrap();

    let last = put_until_ok(&writer, "app/last", "last").await;
    let mirror = writer.mirror("app/").to(&observer, "copy/").wait().start();
    let mirror = mirror.await.unwrap();
    mirror.applied(last).await.unwrap();
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
