//! Sessions that continue with the lease of an earlier process.

use std::time::Duration;

use actix_etcd::{Client, ErrorKind, lease::LeaseLost, recipes::session::SessionEvent};
use testbed::Cluster;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::{
    connected_cluster::StartWithClient,
    wait::{TEST_TIMEOUT, hold},
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn detached_session_continues_in_next_process() {
    let (cluster, before) = Cluster::start_with_client(1).await;
    let session = before.session(3 * SECOND).await.unwrap();
    session.put("a", "1").await.unwrap();
    let id = session.detach().unwrap();
    before.shutdown().await;
    let after = Client::connect(cluster.endpoints()).await.unwrap();
    let session = after.session(3 * SECOND).from_lease(id).await.unwrap();
    assert_eq!(session.lease(), Some(id));
    assert!(session.remaining() > SECOND);
    hold(6 * SECOND).await;
    assert_eq!(after.get("a").await.unwrap().first().unwrap().lease, id);
    session.close().await.unwrap();
    assert_eq!(after.get("a").await.unwrap().count, 0);
}

#[tokio::test]
async fn session_of_missing_lease_is_not_opened() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    // Waits only for errors that may pass.
    let opening = etcd.session(3 * SECOND).from_lease(4711).wait();
    let error = timeout(TEST_TIMEOUT, opening).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseNotFound);
}

#[tokio::test]
async fn leadership_is_resumed_with_lease_of_former_process() {
    let (cluster, before) = Cluster::start_with_client(1).await;
    let session = before.session(10 * SECOND).await.unwrap();
    let leadership = session.election("e").campaign("before").await.unwrap();
    let (key, token) = (leadership.key().clone(), leadership.token());
    let id = session.detach().unwrap();
    // The process ends without a chance to resign.
    std::mem::forget(leadership);
    before.shutdown().await;
    let after = Client::connect(cluster.endpoints()).await.unwrap();
    let session = after.session(10 * SECOND).from_lease(id).await.unwrap();
    let election = session.election("e");
    let resumed = election.resume(&key, token, "after").await.unwrap();
    let leadership = resumed.expect("the leadership was not lost");
    assert_eq!((leadership.key(), leadership.token()), (&key, token));
    let leader = after.leader("e").await.unwrap().unwrap();
    assert_eq!(leader.value, "after");
    assert_eq!(after.get(key).await.unwrap().first().unwrap().lease, id);
    leadership.resign().await.unwrap();
    assert!(after.leader("e").await.unwrap().is_none());
}

#[tokio::test]
async fn dropped_leadership_of_detached_session_is_not_resigned() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for _ in 0..20 {
        let session = etcd.session(60 * SECOND).await.unwrap();
        let leadership = session.election("e").campaign("v").await.unwrap();
        let token = leadership.token();
        let id = session.detach().unwrap();
        drop(leadership);
        // A request that the drop had sent would be handled before some of these.
        for _ in 0..10 {
            let leader = etcd.leader("e").await.unwrap();
            assert_eq!(leader.map(|leader| leader.token), Some(token));
        }
        etcd.revoke(id).await.unwrap();
    }
}

#[tokio::test]
async fn adopted_session_heals_with_new_lease() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let id = etcd.lease(60 * SECOND).await.unwrap().detach();
    let builder = etcd.session(10 * SECOND).heal();
    let session = builder.from_lease(id).await.unwrap();
    session.put("a", "1").await.unwrap();
    let mut events = session.events();
    etcd.revoke(id).await.unwrap();
    let _ = etcd.keep_alive_once(id).await;
    let healing = timeout(TEST_TIMEOUT, events.next()).await.unwrap();
    assert_eq!(healing, Some(SessionEvent::Healing(LeaseLost::Revoked)));
    let healed = timeout(TEST_TIMEOUT, events.next()).await.unwrap();
    let Some(SessionEvent::Healed { lease, .. }) = healed else {
        panic!("{healed:?}");
    };
    assert_ne!(lease, id);
    assert_eq!(etcd.get("a").await.unwrap().first().unwrap().lease, lease);
}

#[tokio::test]
async fn session_ends_when_its_lease_is_adopted() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let earlier = etcd.session(60 * SECOND).heal().await.unwrap();
    earlier.put("a", "1").await.unwrap();
    let id = earlier.lease().unwrap();
    let session = etcd.session(60 * SECOND).from_lease(id).await.unwrap();
    let lost = timeout(TEST_TIMEOUT, earlier.lost()).await;
    assert_eq!(lost, Ok(LeaseLost::TakenOver));
    drop(earlier);
    assert_eq!(session.lease(), Some(id));
    assert_eq!(etcd.get("a").await.unwrap().first().unwrap().lease, id);
}
