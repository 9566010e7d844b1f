//! Ranges as streams. With `ETCD_VERSION` before 3.7, the same tests cover the fallback to pages.

use actix_etcd::{
    Client, ErrorKind,
    kv::{KeyValue, KeyValueStream},
};
use testbed::{Cluster, Direction, Member};

use crate::support::{
    connected_cluster::StartWithClient, quiet_window::ready_members, wait::until,
};

async fn import(etcd: &Client, keys: usize, value: usize) {
    let mut bulk = etcd.bulk().start();
    for n in 0..keys {
        bulk.put(format!("r/{n:06}"), vec![b'v'; value])
            .await
            .unwrap();
    }
    bulk.finish().await.unwrap();
}

/// Reads up to this many keys.
async fn read(stream: &mut KeyValueStream, keys: usize) -> Vec<KeyValue> {
    let mut found = Vec::new();
    while found.len() < keys
        && let Some(kv) = stream.next().await
    {
        found.push(kv.unwrap());
    }
    found
}

#[tokio::test]
async fn stream_shows_one_revision_during_writes() {
    let (_cluster, etcd) = Cluster::start_with_client(3).await;
    import(&etcd, 5_000, 1_000).await;
    let mut stream = etcd.get("r/").prefix().stream();
    let mut found = read(&mut stream, 10).await;
    // Keys that are read already, that are read later, and new ones.
    for key in ["r/000003", "r/002000", "r/002000x", "r/004999", "r/005000"] {
        etcd.put(key, "changed").await.unwrap();
    }
    etcd.delete("r/004000").await.unwrap();
    found.extend(read(&mut stream, usize::MAX).await);
    let revision = stream.revision().unwrap();
    let range = etcd.get("r/").prefix().revision(revision).await.unwrap();
    assert_eq!(found.len(), 5_000);
    assert_eq!(found, range.kvs);
}

#[tokio::test]
async fn stream_equals_whole_range() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    import(&etcd, 1_200, 10).await;
    let all = || etcd.get("").prefix();
    let ranges = [
        all(),
        etcd.get("r/000100").range("r/000900"),
        // The range ends directly after its last key.
        etcd.get("r/000100").range("r/001199\0"),
        etcd.get("r/000100").from_key(),
        all().keys_only(),
        all().serializable(),
        all().min_mod_revision(4),
        etcd.get("none/").prefix(),
    ];
    for range in ranges {
        let whole = range.clone().await.unwrap();
        let mut stream = range.stream();
        assert_eq!(read(&mut stream, usize::MAX).await, whole.kvs);
        assert_eq!(stream.revision(), Some(whole.header.revision));
        assert!(stream.next().await.is_none());
    }
}

#[tokio::test]
async fn stream_rejects_options_it_cannot_continue() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let all = || etcd.get("").prefix();
    for invalid in [
        etcd.get("r/000100"),
        all().limit(3),
        all().descending(),
        all().sort_by_value(),
        all().count_only(),
    ] {
        let mut stream = invalid.stream();
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(stream.next().await.is_none());
    }
}

#[tokio::test]
async fn stream_of_compacted_revision_fails() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    import(&etcd, 50, 10).await;
    let revision = etcd.get("r/000000").await.unwrap().header.revision;
    etcd.put("r/000000", "new").await.unwrap();
    etcd.compact(revision + 1).await.unwrap();
    let mut stream = etcd.get("r/").prefix().revision(revision).stream();
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compacted);
    assert!(stream.next().await.is_none());
}

/// Returns the member that has sent the most bytes to clients since `before`.
fn busiest(members: &[Member], before: &[u64]) -> Member {
    let sent = |member: &Member| member.client_link().bytes(Direction::ToClient);
    let busiest = members
        .iter()
        .zip(before)
        .max_by_key(|(member, before)| sent(member) - **before);
    busiest.unwrap().0.clone()
}

#[tokio::test]
async fn stream_continues_after_member_dies() {
    const KEYS: usize = 20_000;
    let (cluster, etcd) = Cluster::start_with_client(3).await;
    until("all members are ready", || ready_members(&etcd) == 3).await;
    import(&etcd, KEYS, 1_000).await;
    let members = cluster.members();
    let sent = members.iter().map(Member::client_link);
    let before: Vec<u64> = sent.map(|link| link.bytes(Direction::ToClient)).collect();
    let mut stream = etcd.get("r/").prefix().stream();
    let mut found = read(&mut stream, 3_000).await;
    etcd.put("r/019999", "changed").await.unwrap();
    // The rest does not fit into the buffers of client and proxy, so the member is still sending.
    busiest(&members, &before).kill();
    found.extend(read(&mut stream, usize::MAX).await);
    assert_eq!(found.len(), KEYS);
    let revision = stream.revision().unwrap();
    assert!(found.iter().all(|kv| kv.mod_revision <= revision));
    assert!(found.is_sorted_by(|a, b| a.key < b.key));
    assert_eq!(found[KEYS - 1].value.len(), 1_000);
}
