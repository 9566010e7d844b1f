//! Mirrors between two clusters, and within one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, Error, ErrorKind, Outcome,
    kv::put,
    layers::mirror::{ExistingKeys, Mirror, MirrorEnd, MirrorState},
};
use testbed::Cluster;

use crate::support::{
    connected_cluster::StartWithClient,
    message_recorder::record_messages,
    mirrors::{catch_up, failure},
    wait::until,
};

const CHECKPOINT: &str = "mirrors/app";

async fn start(source: &Client, destination: &Client) -> Result<Mirror, Error> {
    let mirror = source.mirror("app/").to(destination, "copy/");
    mirror.checkpoint(CHECKPOINT).start().await
}

/// Returns the keys with a prefix, without it, and their values.
async fn keys(etcd: &Client, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let found = etcd.get(prefix).prefix().await.unwrap();
    let entries = found.kvs.iter().map(|kv| {
        let suffix = String::from_utf8_lossy(&kv.key[prefix.len()..]).into_owned();
        (suffix, kv.value.to_vec())
    });
    entries.collect()
}

async fn assert_equal(source: &Client, destination: &Client) {
    assert_eq!(keys(destination, "copy/").await, keys(source, "app/").await);
}

/// Returns how often a key was written since it was created.
async fn version(etcd: &Client, key: &str) -> i64 {
    etcd.get(key).await.unwrap().first().unwrap().version
}

#[tokio::test]
async fn keys_and_later_changes_are_copied() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (destination_cluster, destination) = Cluster::start_with_client(1).await;
    let lease = source.lease(Duration::from_secs(600)).await.unwrap();
    source
        .put("app/leased", "v")
        .lease(lease.id())
        .await
        .unwrap();
    source.put("app/binary", vec![0, 255]).await.unwrap();
    source.put("app", "not in the prefix").await.unwrap();
    let mirror = start(&source, &destination).await.unwrap();
    catch_up(&mirror, &source).await;
    assert_equal(&source, &destination).await;

    source.put("app/new", "1").await.unwrap();
    source.put("app/new", "2").await.unwrap();
    source.delete("app/binary").await.unwrap();
    let both = [put("app/a", "both"), put("app/b", "both")];
    source.txn().then(both).await.unwrap();
    source.put("other", "v").await.unwrap();
    catch_up(&mirror, &source).await;
    assert_equal(&source, &destination).await;
    assert_eq!(version(&destination, "copy/new").await, 2);
    let changes = destination_cluster.history("copy/").await;
    assert!(changes.iter().all(|change| change.lease == 0));
    // A lease that ends deletes its keys.
    source.revoke(lease.id()).await.unwrap();
    catch_up(&mirror, &source).await;
    assert!(!keys(&destination, "copy/").await.contains_key("leased"));
    let progress = mirror.stop().await.unwrap();
    assert_eq!(progress.changes, 8);
}

#[tokio::test]
async fn stopped_mirror_continues_at_its_checkpoint() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    source.put("app/old", "v").await.unwrap();
    let mirror = start(&source, &destination).await.unwrap();
    catch_up(&mirror, &source).await;
    let stopped = mirror.stop().await.unwrap();
    source.put("app/k", "1").await.unwrap();
    source.put("app/k", "2").await.unwrap();
    source.delete("app/old").await.unwrap();
    let mirror = start(&source, &destination).await.unwrap();
    assert!(mirror.progress().applied_revision >= stopped.applied_revision);
    catch_up(&mirror, &source).await;
    assert_equal(&source, &destination).await;
    // Both values were copied: this was no copy of the base.
    assert_eq!(version(&destination, "copy/k").await, 2);
}

#[tokio::test]
async fn large_base_is_copied_and_resumed() {
    const KEYS: usize = 10_000;
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    let mut bulk = source.bulk().start();
    for n in 0..KEYS {
        bulk.put(format!("app/{n:05}"), n.to_string())
            .await
            .unwrap();
    }
    bulk.finish().await.unwrap();
    // The mirror is killed in the middle of the base.
    let mirror = start(&source, &destination).await.unwrap();
    until("a part of the base is copied", || {
        mirror.progress().changes > 0
    })
    .await;
    drop(mirror);
    let mirror = start(&source, &destination).await.unwrap();
    catch_up(&mirror, &source).await;
    assert_equal(&source, &destination).await;
    let found = destination.get("copy/").prefix().await.unwrap();
    assert_eq!(found.kvs.len(), KEYS);
    assert!(
        found.kvs.iter().all(|kv| kv.version == 1),
        "a key was written twice"
    );
}

#[tokio::test]
async fn compacted_history_is_replaced_by_a_difference() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    for key in ["same", "changed", "deleted"] {
        source.put(format!("app/{key}"), "1").await.unwrap();
    }
    let mirror = start(&source, &destination).await.unwrap();
    catch_up(&mirror, &source).await;
    mirror.stop().await.unwrap();
    source.put("app/changed", "2").await.unwrap();
    source.delete("app/deleted").await.unwrap();
    let last = source
        .put("app/created", "1")
        .await
        .unwrap()
        .header
        .revision;
    source.compact(last).await.unwrap();
    let mirror = start(&source, &destination).await.unwrap();
    catch_up(&mirror, &source).await;
    assert_equal(&source, &destination).await;
    assert_eq!(version(&destination, "copy/same").await, 1);
    assert_eq!(version(&destination, "copy/changed").await, 2);
}

/// The checkpoint of a mirror of one cluster, used for a mirror of another cluster and of another prefix.
#[tokio::test]
async fn foreign_checkpoint_is_refused_and_nothing_is_written() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    source.put("app/k", "v").await.unwrap();
    let mirror = start(&source, &destination).await.unwrap();
    catch_up(&mirror, &source).await;
    mirror.stop().await.unwrap();
    destination.put("app/own", "v").await.unwrap();
    let before = destination.get("k").await.unwrap().header.revision;
    let other_cluster = start(&destination, &destination).await.unwrap_err();
    let other_prefix = source.mirror("other/").to(&destination, "copy/");
    let other_prefix = other_prefix
        .checkpoint(CHECKPOINT)
        .start()
        .await
        .unwrap_err();
    let no_checkpoint = source.mirror("app/").to(&destination, "copy/");
    let no_checkpoint = no_checkpoint
        .checkpoint("copy/k")
        .start()
        .await
        .unwrap_err();
    for error in [&other_cluster, &other_prefix, &no_checkpoint] {
        assert_eq!(error.kind(), ErrorKind::CheckpointMismatch);
        assert_eq!(error.outcome(), Outcome::NotSent);
        assert!(error.to_string().contains("start_over"), "{error}");
    }
    assert_eq!(destination.get("k").await.unwrap().header.revision, before);
    let mirror = destination.mirror("app/").to(&destination, "copy/");
    let mirror = mirror
        .checkpoint(CHECKPOINT)
        .start_over()
        .start()
        .await
        .unwrap();
    catch_up(&mirror, &destination).await;
    assert_equal(&destination, &destination).await;
}

#[tokio::test]
async fn prefix_is_mirrored_within_one_cluster() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for (from, to) in [
        ("app/", "app/copy/"),
        ("app/", ""),
        ("", "copy/"),
        ("app/", "app/"),
    ] {
        let overlapping = etcd.mirror(from).to(&etcd, to).start().await.unwrap_err();
        assert_eq!(
            overlapping.kind(),
            ErrorKind::InvalidArgument,
            "{from} {to}"
        );
    }
    let own_checkpoint = etcd.mirror("app/").to(&etcd, "copy/").checkpoint("app/c");
    let own_checkpoint = own_checkpoint.start().await.unwrap_err();
    assert_eq!(own_checkpoint.kind(), ErrorKind::InvalidArgument);
    assert_eq!(etcd.get("").prefix().await.unwrap().kvs, []);
    etcd.put("app/k", "1").await.unwrap();
    let mirror = start(&etcd, &etcd).await.unwrap();
    etcd.put("app/k", "2").await.unwrap();
    catch_up(&mirror, &etcd).await;
    assert_equal(&etcd, &etcd).await;
}

#[tokio::test]
async fn namespaces_of_one_cluster_are_mirrored() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let [a, b] = ["a/", "b/"].map(|prefix| etcd.namespace(prefix).unwrap());
    etcd.put("app/k", "root").await.unwrap();
    a.put("app/k", "1").await.unwrap();
    // The copy is in the source.
    let into_source = [
        etcd.mirror("a/").to(&a, "copy/"),
        a.mirror("").to(&etcd, "a/copy/"),
        etcd.mirror("a/")
            .to(&etcd, "copy/")
            .checkpoint("a/checkpoint"),
    ];
    for mirror in into_source {
        let overlapping = mirror.start().await.unwrap_err();
        assert_eq!(overlapping.kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(a.get("").prefix().await.unwrap().count, 1);

    let mirror = a.mirror("").to(&b, "").checkpoint(CHECKPOINT);
    let mirror = mirror.start().await.unwrap();
    let last = a.put("app/k", "2").await.unwrap().header.revision;
    mirror.applied(last).await.unwrap();
    assert_eq!(keys(&b, "app/").await["k"], b"2");
    assert_eq!(keys(&etcd, "app/").await["k"], b"root");
    mirror.stop().await.unwrap();
    // The same call with a source in another namespace is another mirror.
    let other = etcd.mirror("").to(&b, "").checkpoint(CHECKPOINT);
    assert_eq!(
        other.start().await.unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let c = etcd.namespace("c/").unwrap();
    let other = c.mirror("").to(&b, "").checkpoint(CHECKPOINT);
    let other = other.start().await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::CheckpointMismatch);
    // The same mirror without namespaces.
    let same = etcd.mirror("a/").to(&etcd, "b/");
    let same = same.checkpoint(format!("b/{CHECKPOINT}"));
    let same = same.start().await.unwrap();
    let last = a.put("app/k", "3").await.unwrap().header.revision;
    same.applied(last).await.unwrap();
    assert_eq!(keys(&b, "app/").await["k"], b"3");
}

#[tokio::test]
async fn existing_keys_are_refused_deleted_or_kept() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    source.put("app/k", "v").await.unwrap();
    destination.put("copy/existing", "v").await.unwrap();
    let refused = start(&source, &destination).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DestinationNotEmpty);
    assert_eq!(destination.get("mirrors/").prefix().await.unwrap().kvs, []);
    for (existing_keys, expected) in [
        (ExistingKeys::Keep, vec!["existing", "k"]),
        (ExistingKeys::Delete, vec!["k"]),
    ] {
        let mirror = source.mirror("app/").to(&destination, "copy/");
        let mirror = mirror
            .existing_keys(existing_keys)
            .start_over()
            .start()
            .await
            .unwrap();
        catch_up(&mirror, &source).await;
        let found = keys(&destination, "copy/").await;
        assert_eq!(found.into_keys().collect::<Vec<_>>(), expected);
    }
}

/// A checkpoint with a fixed key is used for another destination prefix.
#[tokio::test]
async fn start_over_refuses_existing_keys_of_other_prefix() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    source.put("app/k", "v").await.unwrap();
    destination.put("own/k", "v").await.unwrap();
    let mirror = start(&source, &destination).await.unwrap();
    catch_up(&mirror, &source).await;
    mirror.stop().await.unwrap();
    let start_over = |prefix: &str| {
        let mirror = source.mirror("app/").to(&destination, prefix);
        mirror.checkpoint(CHECKPOINT).start_over()
    };
    for prefix in ["own/", "", "o"] {
        let refused = start_over(prefix).start().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DestinationNotEmpty);
    }
    assert_eq!(keys(&destination, "own/").await["k"], b"v");
    // The checkpoint itself is no such key.
    for prefix in ["empty/", "mirrors/", "mirrors/app"] {
        let mirror = start_over(prefix).start().await.unwrap();
        catch_up(&mirror, &source).await;
        mirror.stop().await.unwrap();
        assert_eq!(keys(&destination, prefix).await["k"], b"v", "{prefix}");
        destination.delete(format!("{prefix}k")).await.unwrap();
    }
    let mirror = start_over("own/").existing_keys(ExistingKeys::Keep);
    let mirror = mirror.start().await.unwrap();
    catch_up(&mirror, &source).await;
}

/// All keys of the source go to a destination that has its checkpoint among them.
#[tokio::test]
async fn whole_cluster_is_mirrored_without_its_checkpoint() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    source.put("k", "v").await.unwrap();
    source.put(CHECKPOINT, "a key of the source").await.unwrap();
    let mirror = source
        .mirror("")
        .to(&destination, "")
        .checkpoint(CHECKPOINT);
    let mirror = mirror.start().await.unwrap();
    source.delete(CHECKPOINT).await.unwrap();
    let last = source.put("last", "v").await.unwrap().header.revision;
    mirror.applied(last).await.unwrap();
    let found = keys(&destination, "").await;
    assert_eq!(found.keys().collect::<Vec<_>>(), ["k", "last", CHECKPOINT]);
    assert!(found[CHECKPOINT].starts_with(b"{"));
}

#[tokio::test]
async fn newer_mirror_ends_the_older_one() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    let older = start(&source, &destination).await.unwrap();
    catch_up(&older, &source).await;
    let newer = start(&source, &destination).await.unwrap();
    source.put("app/k", "v").await.unwrap();
    assert_eq!(failure(&older).await.kind(), ErrorKind::CheckpointTaken);
    catch_up(&newer, &source).await;
    assert_eq!(version(&destination, "copy/k").await, 1);
}

#[tokio::test]
async fn busy_mirror_is_taken_over() {
    const TAKEOVERS: usize = 5;
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers = (0..4).map(|writer| {
        let (source, stop) = (source.clone(), stop.clone());
        tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let key = format!("app/{writer}");
                source.put(key, n.to_string()).await.unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut older = Vec::new();
    for _ in 0..TAKEOVERS {
        let mirror = start(&source, &destination).await.unwrap();
        let began = mirror.progress().changes;
        until("the mirror is busy", || mirror.progress().changes > began).await;
        older.push(mirror);
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    catch_up(&older.pop().unwrap(), &source).await;
    assert_equal(&source, &destination).await;
    for mirror in &older {
        assert_eq!(failure(mirror).await.kind(), ErrorKind::CheckpointTaken);
    }
}

#[tokio::test]
async fn merged_updates_lead_to_the_same_keys() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    let mirror = source.mirror("app/").to(&destination, "copy/");
    let mirror = mirror.merge_updates();
    let first = mirror.clone().start().await.unwrap();
    catch_up(&first, &source).await;
    first.stop().await.unwrap();
    for n in 0..500 {
        source.put("app/k", n.to_string()).await.unwrap();
    }
    let mirror = mirror.start().await.unwrap();
    catch_up(&mirror, &source).await;
    assert_equal(&source, &destination).await;
    assert!(version(&destination, "copy/k").await < 100);
}

#[actix_rt::test]
async fn states_are_delivered_to_an_actor() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    let mirror = start(&source, &destination).await.unwrap();
    let (states, recipient) = record_messages::<MirrorState>();
    let _subscription = mirror.deliver_to(recipient);
    let received = |wanted: fn(&MirrorState) -> bool| states.lock().unwrap().iter().any(wanted);
    until("the mirror follows", || {
        received(|state| matches!(state, MirrorState::Following))
    })
    .await;
    mirror.stop().await.unwrap();
    until("the mirror has ended", || {
        received(|state| matches!(state, MirrorState::Ended(MirrorEnd::Stopped)))
    })
    .await;
}
