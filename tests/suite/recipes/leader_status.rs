//! Whether a candidate leads, without a request, and whether it is healthy enough to lead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, ErrorKind, recipes::election::OwnershipLost};
use testbed::{Cluster, Fault};
use tokio::time::timeout;

use crate::support::{
    connected_cluster::StartWithClient,
    wait::{TEST_TIMEOUT, until, until_async},
};

const TTL: Duration = Duration::from_secs(2);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(20);

async fn candidates(etcd: &Client) -> i64 {
    etcd.get("e/").prefix().await.unwrap().count
}

#[tokio::test]
async fn is_leader_follows_leadership_without_requests() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let election = etcd.election("e").await.unwrap();
    assert!(!election.is_leader());
    let leadership = election.campaign("v").await.unwrap();
    assert!(election.is_leader() && election.clone().is_leader());
    leadership.resign().await.unwrap();
    assert!(!election.is_leader());
    let leadership = election.campaign("v").await.unwrap();
    assert!(election.is_leader());
    // As an operator would do it.
    etcd.delete(leadership.key()).await.unwrap();
    until("the leadership has ended", || !election.is_leader()).await;
    drop(leadership);
    let leadership = election.campaign("v").await.unwrap();
    assert!(election.is_leader());
    drop(leadership);
    assert!(!election.is_leader());
}

#[tokio::test]
async fn cut_off_leader_leads_again_after_renewal() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let election = etcd.election("e").ttl(TTL).await.unwrap();
    let leadership = election.campaign("v").await.unwrap();
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let keep_alive = tokio::spawn({
        let lease = leadership.lease();
        async move {
            loop {
                // The lease stays alive on the server, but the leader does not know that.
                direct.keep_alive_once(lease).await.unwrap();
                tokio::time::sleep(TTL / 8).await;
            }
        }
    });
    cluster.member(0).client_link().set(Fault::Freeze);
    let lost = timeout(TEST_TIMEOUT, leadership.lost()).await.unwrap();
    assert_eq!(lost, OwnershipLost::AtRisk);
    assert!(!election.is_leader());
    cluster.heal();
    let certain = timeout(TEST_TIMEOUT, leadership.certain_again()).await;
    certain.unwrap().unwrap();
    assert!(election.is_leader());
    leadership.proclaim("still leading").await.unwrap();
    keep_alive.abort();
}

#[tokio::test]
async fn taken_leadership_is_never_certain_again() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let election = etcd.election("e").await.unwrap();
    let leadership = election.campaign("v").await.unwrap();
    etcd.delete(leadership.key()).await.unwrap();
    assert!(leadership.certain_again().await.is_err());
    assert!(!leadership.is_certain());
    let lost = timeout(TEST_TIMEOUT, leadership.lost()).await.unwrap();
    assert_eq!(lost, OwnershipLost::Taken);
}

#[tokio::test]
async fn unhealthy_leader_gives_up_leadership() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (
        etcd.election("e").await.unwrap(),
        etcd.election("e").await.unwrap(),
    );
    let healthy = Arc::new(AtomicBool::new(false));
    let campaign = {
        let healthy = healthy.clone();
        let check = move || healthy.load(Ordering::SeqCst);
        move || a.campaign("a").healthy_while(INTERVAL, check.clone())
    };
    // A candidate that is not healthy does not stand.
    let first = tokio::spawn(campaign().into_future());
    let other = b.campaign("b").await.unwrap();
    assert_eq!(candidates(&etcd).await, 1);
    healthy.store(true, Ordering::SeqCst);
    until_async("the healthy candidate stands", async || {
        candidates(&etcd).await == 2
    })
    .await;
    healthy.store(false, Ordering::SeqCst);
    until_async("the unhealthy candidate is withdrawn", async || {
        candidates(&etcd).await == 1
    })
    .await;
    healthy.store(true, Ordering::SeqCst);
    other.resign().await.unwrap();
    let leadership = timeout(TEST_TIMEOUT, first)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    healthy.store(false, Ordering::SeqCst);
    let lost = timeout(TEST_TIMEOUT, leadership.lost()).await.unwrap();
    assert_eq!(lost, OwnershipLost::Unhealthy);
    assert!(!leadership.is_certain());
    drop(leadership);
    let next = timeout(TEST_TIMEOUT, b.campaign("b").into_future()).await;
    next.unwrap().unwrap().resign().await.unwrap();
}

#[tokio::test]
async fn unhealthy_leader_is_not_certain_again() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let election = etcd.election("e").ttl(LONG).await.unwrap();
    let healthy = Arc::new(AtomicBool::new(true));
    let check = {
        let healthy = healthy.clone();
        move || healthy.load(Ordering::SeqCst)
    };
    let campaign = election.campaign("a").healthy_while(INTERVAL, check);
    let leadership = campaign.await.unwrap();
    cluster.member(0).client_link().set(Fault::Freeze);
    let ownership = (*leadership).clone();
    let certain = tokio::spawn(async move { ownership.certain_again().await });
    // The request of `certain_again` is in flight meanwhile.
    tokio::task::yield_now().await;
    healthy.store(false, Ordering::SeqCst);
    let lost = timeout(TEST_TIMEOUT, leadership.lost()).await.unwrap();
    assert_eq!(lost, OwnershipLost::Unhealthy);
    cluster.heal();
    let certain = timeout(TEST_TIMEOUT, certain).await.unwrap().unwrap();
    let error = certain.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LockLost);
    assert!(error.to_string().contains("not healthy"), "{error}");
}

#[tokio::test]
async fn stuck_unhealthy_leader_is_replaced() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(LONG).await.unwrap();
    let election = etcd.election("e").ttl(TTL).await.unwrap();
    let healthy = Arc::new(AtomicBool::new(true));
    let check = {
        let healthy = healthy.clone();
        move || healthy.load(Ordering::SeqCst)
    };
    let campaign = election.campaign("a").healthy_while(INTERVAL, check);
    let stuck = campaign.await.unwrap();
    healthy.store(false, Ordering::SeqCst);
    // The leadership is not dropped, and its session stays open.
    let other = session.election("e").campaign("b");
    let other = timeout(TEST_TIMEOUT, other.into_future()).await;
    assert!(other.unwrap().unwrap().token() > stuck.token());
    assert!(!election.is_leader());
}

#[tokio::test]
async fn panicking_health_check_counts_as_unhealthy() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let election = etcd.election("e").await.unwrap();
    let panics = Arc::new(AtomicBool::new(false));
    let check = {
        let panics = panics.clone();
        move || !panics.load(Ordering::SeqCst) || panic!("the check fails")
    };
    let campaign = election.campaign("v").healthy_while(INTERVAL, check);
    let leadership = campaign.await.unwrap();
    panics.store(true, Ordering::SeqCst);
    let lost = timeout(TEST_TIMEOUT, leadership.lost()).await.unwrap();
    assert_eq!(lost, OwnershipLost::Unhealthy);
}
