//! Mirrors while a cluster fails, loses data or has lower limits.

use std::{fs, time::Duration};

use actix_etcd::{
    Client, ErrorKind,
    layers::mirror::{Mirror, MirrorSide, MirrorState},
};
use testbed::{Cluster, Direction, Fault};

use crate::support::{
    connected_cluster::{StartWithClient, cluster_key},
    mirrors::{catch_up, failure},
    wait::{until, until_async},
};

async fn start(source: &Client, destination: &Client) -> Mirror {
    let mirror = source.mirror("app/").to(destination, "copy/");
    mirror.start().await.unwrap()
}

#[tokio::test]
async fn lag_grows_while_destination_is_down() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (destination_cluster, destination) = Cluster::start_with_client(1).await;
    let mirror = start(&source, &destination).await;
    catch_up(&mirror, &source).await;
    until("the mirror has no lag", || {
        mirror.lag().is_some_and(|lag| lag.revisions == 0)
    })
    .await;
    destination_cluster.member(0).kill();
    for n in 0..50 {
        source.put(format!("app/{n}"), "v").await.unwrap();
    }
    until("the mirror is behind", || {
        mirror
            .lag()
            .is_some_and(|lag| lag.revisions >= 49 && lag.age > Duration::from_secs(2))
    })
    .await;
    until("the mirror is interrupted", || {
        let state = mirror.state();
        let side = MirrorSide::Destination;
        matches!(state, MirrorState::Interrupted { side: interrupted, .. } if interrupted == side)
    })
    .await;
    destination_cluster.start_all().await;
    catch_up(&mirror, &source).await;
    until("the mirror has caught up", || {
        let lag = mirror.lag().unwrap();
        lag.revisions == 0 && lag.age < Duration::from_secs(2)
    })
    .await;
    until("the mirror follows", || {
        matches!(mirror.state(), MirrorState::Following)
    })
    .await;
}

#[tokio::test]
async fn lag_grows_while_source_is_unreachable() {
    let (source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    let mirror = start(&source, &destination).await;
    catch_up(&mirror, &source).await;
    until("the mirror has no lag", || mirror.lag().is_some()).await;
    source_cluster.member(0).client_link().set(Fault::Freeze);
    until("the mirror is interrupted", || {
        let interrupted = matches!(
            mirror.state(),
            MirrorState::Interrupted {
                side: MirrorSide::Source,
                ..
            }
        );
        interrupted && mirror.lag().unwrap().age > Duration::from_secs(2)
    })
    .await;
    source_cluster.heal();
    until("the mirror has caught up", || {
        mirror.lag().unwrap().age < Duration::from_secs(2)
    })
    .await;
    until("the mirror follows", || {
        matches!(mirror.state(), MirrorState::Following)
    })
    .await;
}

/// The destination applies a transaction, and its response is lost.
#[tokio::test]
async fn lost_response_does_not_write_twice() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (destination_cluster, destination) = Cluster::start_with_client(1).await;
    let mirror = start(&source, &destination).await;
    catch_up(&mirror, &source).await;
    let link = destination_cluster.member(0).client_link().clone();
    let before = destination_cluster.revision().await;
    link.set(Fault::HalfOpen(Direction::ToClient));
    source.put("app/k", "v").await.unwrap();
    let applied = async || destination_cluster.revision().await > before;
    until_async("the transaction is applied", applied).await;
    let accepted = link.accepted();
    link.reset_now();
    until("the client connects again", || link.accepted() > accepted).await;
    link.heal();
    catch_up(&mirror, &source).await;
    let found = destination.get("copy/k").await.unwrap();
    assert_eq!(found.first().unwrap().version, 1);
    assert_eq!(
        destination_cluster
            .history(cluster_key("copy/"))
            .await
            .len(),
        1
    );
}

/// Deletes this many keys in one revision. Returns in how many revisions the destination deleted them.
async fn delete_at_once(keys: usize, max_txn_ops: usize) -> usize {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let limit = format!("--max-txn-ops={max_txn_ops}");
    let destination_cluster = Cluster::builder().arg(limit);
    let destination_cluster = destination_cluster.start().await;
    let destination = Client::connect(destination_cluster.endpoints())
        .await
        .unwrap();
    let mut bulk = source.bulk().start();
    for n in 0..keys {
        bulk.put(format!("app/{n:05}"), "v").await.unwrap();
    }
    bulk.finish().await.unwrap();
    let mirror = start(&source, &destination).await;
    catch_up(&mirror, &source).await;
    source.delete("app/").prefix().await.unwrap();
    catch_up(&mirror, &source).await;
    assert_eq!(destination.get("copy/").prefix().await.unwrap().count, 0);
    let changes = destination_cluster.history("copy/").await;
    let deletes = changes.iter().filter(|change| change.value.is_none());
    let mut revisions: Vec<_> = deletes.map(|change| change.revision).collect();
    assert_eq!(revisions.len(), keys);
    revisions.dedup();
    revisions.len()
}

#[tokio::test]
async fn large_revision_is_applied_at_once() {
    assert_eq!(delete_at_once(3_000, 128).await, 1);
}

#[tokio::test]
async fn too_large_revision_is_split() {
    assert_eq!(delete_at_once(5_000, 128).await, 2);
}

#[tokio::test]
async fn lower_limit_of_destination_is_found() {
    // 8 is the largest power of two that is allowed: 3 nested transactions of 4 operations.
    assert_eq!(delete_at_once(100, 10).await, 9);
}

/// The source loses its data; its cluster id stays the same.
#[tokio::test]
async fn source_that_lost_its_data_does_not_empty_the_copy() {
    let (source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    for n in 0..20 {
        source.put(format!("app/{n}"), "v").await.unwrap();
    }
    let mirror = start(&source, &destination).await;
    catch_up(&mirror, &source).await;
    let member = source_cluster.member(0);
    member.kill();
    fs::remove_dir_all(member.data_folder()).unwrap();
    source_cluster.start_all().await;
    assert_eq!(failure(&mirror).await.kind(), ErrorKind::RevisionRegressed);
    let again = source.mirror("app/").to(&destination, "copy/");
    let refused = again.clone().start().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::RevisionRegressed);
    assert!(refused.to_string().contains("start_over"), "{refused}");
    assert_eq!(destination.get("copy/").prefix().await.unwrap().count, 20);
    source.put("app/after", "v").await.unwrap();
    let mirror = again.start_over().start().await.unwrap();
    catch_up(&mirror, &source).await;
    let found = destination.get("copy/").prefix().await.unwrap();
    assert_eq!(
        (found.count, &found.kvs[0].key[..]),
        (1, &b"copy/after"[..])
    );
}

#[tokio::test]
async fn deleted_checkpoint_ends_the_mirror() {
    let (_source_cluster, source) = Cluster::start_with_client(1).await;
    let (_destination_cluster, destination) = Cluster::start_with_client(1).await;
    let mirror = start(&source, &destination).await;
    catch_up(&mirror, &source).await;
    destination
        .delete("actix-etcd/mirrors/copy/")
        .await
        .unwrap();
    source.put("app/k", "v").await.unwrap();
    assert_eq!(failure(&mirror).await.kind(), ErrorKind::CheckpointMismatch);
}

#[tokio::test]
async fn shutdown_of_either_client_ends_the_mirror() {
    let (source_cluster, source) = Cluster::start_with_client(1).await;
    let (destination_cluster, destination) = Cluster::start_with_client(1).await;
    let mirror = start(&source, &destination).await;
    catch_up(&mirror, &source).await;
    destination.shutdown().await;
    source.put("app/k", "v").await.unwrap();
    assert_eq!(failure(&mirror).await.kind(), ErrorKind::Shutdown);
    let destination = Client::connect(destination_cluster.endpoints())
        .await
        .unwrap();
    let mirror = start(&source, &destination).await;
    source.shutdown().await;
    assert_eq!(failure(&mirror).await.kind(), ErrorKind::Shutdown);
    drop(source_cluster);
}
