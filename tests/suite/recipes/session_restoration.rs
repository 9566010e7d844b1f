//! Healing sessions with keys that etcd refuses, and with many keys.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind,
    auth::roles::Permission,
    recipes::session::{Session, SessionEvent, UnrestoredKey},
};
use testbed::Cluster;
use tokio::time::timeout;
use tokio_stream::{Stream, StreamExt};

use crate::support::{
    auth_cluster::{connect_as, connect_as_root, start_with_auth},
    connected_cluster::StartWithClient,
    wait::{TEST_TIMEOUT, hold},
};

const SECOND: Duration = Duration::from_secs(1);

/// Ends the lease of a session on the server, and makes the client notice. `root` may revoke it.
async fn end_lease(root: &Client, etcd: &Client, session: &Session) {
    let lease = session.lease().unwrap();
    root.revoke(lease).await.unwrap();
    let _ = etcd.keep_alive_once(lease).await;
}

/// Returns the first event for which `read` returns a value.
async fn next_event<T>(
    events: &mut (impl Stream<Item = SessionEvent> + Unpin),
    read: impl Fn(SessionEvent) -> Option<T>,
) -> T {
    let found = timeout(TEST_TIMEOUT, async {
        loop {
            let event = events.next().await.expect("the session is not lost");
            if let Some(found) = read(event) {
                return found;
            }
        }
    });
    found.await.expect("the event arrives in time")
}

fn not_restored(event: SessionEvent) -> Option<Vec<UnrestoredKey>> {
    match event {
        SessionEvent::KeysNotRestored(keys) => Some(keys),
        _ => None,
    }
}

#[tokio::test]
async fn denied_key_does_not_affect_other_keys() {
    const KEYS: usize = 30;
    let cluster = start_with_auth(Cluster::builder()).await;
    cluster.add_user("ann", "word", Some("a/")).await;
    let root = connect_as_root(&cluster).await;
    let role = "role-of-ann";
    let permission = || Permission::read_write("b");
    root.roles().grant(role, permission()).await.unwrap();
    let etcd = connect_as(&cluster, "ann", "word").await;
    let session = etcd.session(20 * SECOND).heal().await.unwrap();
    session.put("b", "denied").await.unwrap();
    for n in 0..KEYS {
        session.put(format!("a/{n}"), "v").await.unwrap();
    }
    let mut events = session.events();
    root.roles().revoke(role, permission()).await.unwrap();
    end_lease(&root, &etcd, &session).await;
    let keys = next_event(&mut events, not_restored).await;
    let [key] = keys.as_slice() else {
        panic!("{keys:?}");
    };
    assert_eq!(
        (key.key.as_ref(), key.kind),
        (b"b".as_ref(), ErrorKind::PermissionDenied)
    );
    assert_eq!(session.unrestored_keys(), keys);
    // The session is up: its other keys are bound to the new lease, which stays.
    let lease = session.lease().unwrap();
    hold(2 * SECOND).await;
    assert_eq!(session.lease(), Some(lease));
    let found = etcd.get("a/").prefix().await.unwrap();
    assert_eq!(found.kvs.len(), KEYS);
    assert!(found.kvs.iter().all(|kv| kv.lease == lease));
    session.put("a/new", "v").await.unwrap();
    // The key is put as soon as it is permitted again.
    root.roles().grant(role, permission()).await.unwrap();
    let restored = next_event(&mut events, |event| match event {
        SessionEvent::KeysRestored { keys, taken } => Some((keys, taken)),
        SessionEvent::Healing(_) => panic!("the session lost its lease"),
        _ => None,
    });
    assert_eq!(restored.await, (vec!["b".into()], Vec::new()));
    assert!(session.unrestored_keys().is_empty());
    assert_eq!(etcd.get("b").await.unwrap().first().unwrap().lease, lease);
}

#[tokio::test]
async fn refused_key_is_forgotten_when_deleted() {
    let cluster = start_with_auth(Cluster::builder()).await;
    cluster.add_user("ann", "word", Some("a/")).await;
    let root = connect_as_root(&cluster).await;
    let etcd = connect_as(&cluster, "ann", "word").await;
    let session = etcd.session(20 * SECOND).heal().await.unwrap();
    session.put("a/1", "v").await.unwrap();
    let role = "role-of-ann";
    let mut events = session.events();
    let granted = Permission::read_write("a/").prefix();
    root.roles().revoke(role, granted).await.unwrap();
    end_lease(&root, &etcd, &session).await;
    next_event(&mut events, not_restored).await;
    let restored = Permission::read_write("a/1");
    root.roles().grant(role, restored).await.unwrap();
    session.delete("a/1").await.unwrap();
    assert!(session.unrestored_keys().is_empty());
    // Longer than the first delays of the retries.
    hold(2 * SECOND).await;
    assert_eq!(etcd.get("a/1").await.unwrap().count, 0);
}

#[tokio::test]
async fn keys_are_restored_in_batches() {
    const KEYS: usize = 250;
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(20 * SECOND).heal().await.unwrap();
    for n in 0..KEYS {
        session.put(format!("k/{n:03}"), "v").await.unwrap();
    }
    let mut events = session.events();
    let member = cluster.member(0);
    let txns = "grpc_server_started_total{grpc_method=\"Txn\"}";
    let before = member.metric(txns).await.unwrap_or_default();
    end_lease(&etcd, &etcd, &session).await;
    let (lease, taken) = next_event(&mut events, |event| match event {
        SessionEvent::Healed { lease, taken } => Some((lease, taken)),
        _ => None,
    })
    .await;
    assert!(taken.is_empty());
    let found = etcd.get("k/").prefix().await.unwrap();
    assert_eq!(found.kvs.len(), KEYS);
    assert!(found.kvs.iter().all(|kv| kv.lease == lease));
    let sent = member.metric(txns).await.unwrap() - before;
    assert!(sent <= 10.0, "{sent} transactions for {KEYS} keys");
}

#[tokio::test]
async fn large_values_are_restored() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(20 * SECOND).heal().await.unwrap();
    for n in 0..5 {
        session
            .put(format!("k/{n}"), vec![0; 900 * 1024])
            .await
            .unwrap();
    }
    let mut events = session.events();
    end_lease(&etcd, &etcd, &session).await;
    let lease = next_event(&mut events, |event| match event {
        SessionEvent::Healed { lease, .. } => Some(lease),
        _ => None,
    })
    .await;
    let found = etcd.get("k/").prefix().await.unwrap();
    let leases: Vec<_> = found.kvs.iter().map(|kv| kv.lease).collect();
    assert_eq!(leases, [lease; 5]);
    assert!(session.unrestored_keys().is_empty());
}
