//! Sessions on a real cluster: bound keys, loss and healing.

use std::{task::Poll, time::Duration};

use actix_etcd::{Client, ErrorKind, Outcome, lease::LeaseLost, recipes::session::SessionEvent};
use testbed::Cluster;
use tokio_stream::StreamExt;

use crate::support::{
    connected_cluster::{StartWithClient, connect},
    wait::until_async,
};

const SECOND: Duration = Duration::from_secs(1);

async fn value_of(etcd: &Client, key: &str) -> Option<String> {
    let found = etcd.get(key.to_owned()).await.unwrap();
    found
        .first()
        .map(|kv| String::from_utf8(kv.value.to_vec()).unwrap())
}

#[tokio::test]
async fn session_keys_are_bound_and_deleted_on_close() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(10 * SECOND).await.unwrap();
    session.put("a", "1").await.unwrap();
    session.put("b", "2").await.unwrap();
    let lease = session.lease().unwrap();
    assert_eq!(etcd.get("a").await.unwrap().first().unwrap().lease, lease);
    assert!(session.delete("b").await.unwrap());
    assert!(!session.delete("b").await.unwrap());
    assert_eq!(value_of(&etcd, "b").await, None);
    session.close().await.unwrap();
    assert_eq!(value_of(&etcd, "a").await, None);
}

#[tokio::test]
async fn dropped_session_is_revoked() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(60 * SECOND).heal().await.unwrap();
    session.put("a", "1").await.unwrap();
    drop(session);
    until_async("the key is deleted", async || {
        value_of(&etcd, "a").await.is_none()
    })
    .await;
}

/// Polls a future at most `limit` times, then drops it.
async fn poll_at_most<F: Future>(limit: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut polls = 0;
    std::future::poll_fn(|cx| {
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls >= limit => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

// On one thread, the number of polls determines the step at which the future is dropped.
#[actix::test]
async fn cancelled_session_request_leaves_no_lease() {
    let cluster = Cluster::start(1).await;
    let builder = Client::builder(cluster.endpoints()).on_current_arbiter();
    let etcd = builder.connect().await.unwrap();
    let mut opened = 0;
    // The number of polls that a grant takes varies.
    for polls in (1..8).cycle().take(70) {
        let opening = etcd.session(2 * SECOND).into_future();
        opened += usize::from(poll_at_most(polls, opening).await.is_some());
    }
    assert!((1..70).contains(&opened), "{opened}");
    until_async("all leases have ended", async || {
        etcd.leases().await.unwrap().leases.is_empty()
    })
    .await;
}

#[tokio::test]
async fn lost_session_keeps_reporting_its_loss() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(2 * SECOND).await.unwrap();
    let mut events = session.events();
    let lost = session.lost();
    etcd.revoke(session.lease().unwrap()).await.unwrap();
    assert_eq!(lost.await, LeaseLost::Revoked);
    assert_eq!(
        events.next().await,
        Some(SessionEvent::Lost(LeaseLost::Revoked))
    );
    assert_eq!(
        session.lost().await,
        LeaseLost::Revoked,
        "a later call returns another reason"
    );
    assert_eq!(session.lease(), None);
    let rejected = session.put("a", "1").await.unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::SessionLost);
}

#[tokio::test]
async fn put_after_revoke_fails_with_session_lost() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(60 * SECOND).await.unwrap();
    let other_client = connect(cluster.endpoints()).await;
    other_client.revoke(session.lease().unwrap()).await.unwrap();
    // The next keepalive is 20 s away, so the put is the first request to find out.
    let rejected = session.put("a", "1").await.unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::SessionLost);
    assert_eq!(rejected.outcome(), Outcome::Rejected);
}

#[tokio::test]
async fn healed_session_puts_its_keys_again() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(2 * SECOND).heal().await.unwrap();
    session.put("a", "1").await.unwrap();
    session.put("b", "2").await.unwrap();
    session.delete("b").await.unwrap();
    let mut events = session.events();
    let before = session.lease().unwrap();
    etcd.revoke(before).await.unwrap();
    assert_eq!(value_of(&etcd, "a").await, None);
    assert_eq!(
        events.next().await,
        Some(SessionEvent::Healing(LeaseLost::Revoked))
    );
    let Some(SessionEvent::Healed { lease, taken, .. }) = events.next().await else {
        panic!("the session was not healed");
    };
    assert!(taken.is_empty());
    assert!(lease != before && session.lease() == Some(lease));
    let found = etcd.get("a").await.unwrap();
    assert_eq!(
        (
            found.first().unwrap().value.as_ref(),
            found.first().unwrap().lease
        ),
        (&b"1"[..], lease)
    );
    assert_eq!(value_of(&etcd, "b").await, None, "a deleted key was put");
}

#[tokio::test]
async fn healing_spares_keys_of_newer_owners() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(2 * SECOND).heal().await.unwrap();
    session.put("mine", "1").await.unwrap();
    session.put("contested", "1").await.unwrap();
    let mut events = session.events();
    etcd.txn()
        .then([actix_etcd::kv::put("contested", "theirs")])
        .await
        .unwrap();
    etcd.revoke(session.lease().unwrap()).await.unwrap();
    let taken = loop {
        if let SessionEvent::Healed { taken, .. } = events.next().await.unwrap() {
            break taken;
        }
    };
    assert_eq!(taken, ["contested"]);
    assert_eq!(
        value_of(&etcd, "contested").await.as_deref(),
        Some("theirs")
    );
    assert_eq!(value_of(&etcd, "mine").await.as_deref(), Some("1"));
    etcd.revoke(session.lease().unwrap()).await.unwrap();
    while !matches!(events.next().await.unwrap(), SessionEvent::Healed { taken, .. } if taken.is_empty())
    {
    }
    assert_eq!(
        value_of(&etcd, "contested").await.as_deref(),
        Some("theirs"),
        "a key that was given up was put again"
    );
}

#[tokio::test]
async fn healing_takes_over_keys_of_unconfirmed_lease() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd
        .session(20 * SECOND)
        .heal()
        .give_up_after(Duration::ZERO)
        .await
        .unwrap();
    session.put("a", "1").await.unwrap();
    session.put("b", "2").await.unwrap();
    // Another client renews the lease, so that it still exists when the session gives it up.
    let direct = connect(cluster.direct_endpoints()).await;
    let before = session.lease().unwrap();
    // Recognized by its lease, although the session does not know this revision.
    direct.put("b", "3").lease(before).await.unwrap();
    let mut events = session.events();
    cluster.member(0).client_link().set(testbed::Fault::Freeze);
    loop {
        direct.keep_alive_once(before).await.unwrap();
        let event = tokio::time::timeout(5 * SECOND, events.next()).await;
        match event {
            Err(_) | Ok(Some(SessionEvent::AtRisk { .. })) => {}
            Ok(event) => {
                assert_eq!(
                    event,
                    Some(SessionEvent::Healing(LeaseLost::NeverConfirmed))
                );
                break;
            }
        }
    }
    cluster.heal();
    let Some(SessionEvent::Healed { lease, taken, .. }) = events.next().await else {
        panic!("the session was not healed");
    };
    assert!(taken.is_empty());
    assert_eq!(etcd.get("a").await.unwrap().first().unwrap().lease, lease);
    assert_eq!(etcd.get("b").await.unwrap().first().unwrap().lease, lease);
    assert_eq!(value_of(&etcd, "b").await.as_deref(), Some("2"));
    until_async("the old lease is revoked", async || {
        etcd.time_to_live(before).await.unwrap().remaining.is_none()
    })
    .await;
    assert_eq!(value_of(&etcd, "a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn session_put_waits_for_new_lease() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(60 * SECOND).heal().await.unwrap();
    // The next keepalive is 20 s away, longer than a put waits.
    etcd.revoke(session.lease().unwrap()).await.unwrap();
    session.put("a", "1").await.unwrap();
    assert_eq!(
        etcd.get("a").await.unwrap().first().unwrap().lease,
        session.lease().unwrap()
    );
}

#[tokio::test]
async fn shutdown_revokes_self_healing_session() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let other = connect(cluster.endpoints()).await;
    let session = etcd.session(60 * SECOND).heal().await.unwrap();
    session.put("a", "1").await.unwrap();
    etcd.shutdown().await;
    assert_eq!(session.lost().await, LeaseLost::Shutdown);
    assert_eq!(
        value_of(&other, "a").await,
        None,
        "the lease was not revoked"
    );
}

#[tokio::test]
async fn detached_session_leaves_lease_and_keys() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let other = connect(cluster.endpoints()).await;
    let session = etcd.session(60 * SECOND).heal().await.unwrap();
    session.put("a", "1").await.unwrap();
    let lost = session.lost();
    let lease = session.lease().unwrap();
    assert_eq!(session.detach(), Some(lease));
    etcd.shutdown().await;
    assert_eq!(other.get("a").await.unwrap().first().unwrap().lease, lease);
    other.keep_alive_once(lease).await.unwrap();
    let loss = tokio::time::timeout(Duration::ZERO, lost).await;
    assert!(loss.is_err(), "a detached session reported a loss");
}

#[tokio::test]
async fn lost_session_detaches_no_lease() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(2 * SECOND).await.unwrap();
    etcd.revoke(session.lease().unwrap()).await.unwrap();
    session.lost().await;
    assert_eq!(session.detach(), None);
}
