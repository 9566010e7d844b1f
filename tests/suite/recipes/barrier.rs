//! Barriers on a real cluster: held once, released for all waiters, through outages and compactions.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind,
    recipes::barrier::{Barrier, BarrierEvent, HoldOutcome},
};
use testbed::{Cluster, Fault};
use tokio::{task::JoinHandle, time::timeout};

use crate::support::{
    connected_cluster::StartWithClient,
    message_recorder::record_messages,
    wait::{TEST_TIMEOUT, hold, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

/// Starts a task that waits for the barrier. Returns when its watch is open.
async fn spawn_waiter(cluster: &Cluster, barrier: &Barrier) -> JoinHandle<actix_etcd::Result<()>> {
    let member = cluster.member(0);
    let watchers = async || {
        member
            .metric("etcd_debugging_mvcc_watcher_total")
            .await
            .unwrap()
    };
    let before = watchers().await;
    let waiting = tokio::spawn(barrier.wait().into_future());
    until_async("the waiter watches", async || watchers().await > before).await;
    waiting
}

#[tokio::test]
async fn held_barrier_blocks_all_waiters_until_released() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let barrier = etcd.barrier("b");
    timeout(TEST_TIMEOUT, barrier.wait().into_future())
        .await
        .unwrap()
        .unwrap();
    assert!(!barrier.is_held().await.unwrap());
    assert!(!barrier.release().await.unwrap());
    let HoldOutcome::Held { revision, .. } = barrier.hold().await.unwrap() else {
        panic!("the barrier was held already");
    };
    // As the Go client puts it.
    let found = etcd.get("b").await.unwrap();
    let found = found.first().unwrap();
    assert_eq!((found.create_revision, found.lease), (revision, 0));
    assert!(found.value.is_empty());
    assert_eq!(etcd.leases().await.unwrap().leases, [0_i64; 0]);
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    let HoldOutcome::AlreadyHeld(holder) = other.barrier("b").hold().await.unwrap() else {
        panic!("the barrier is held twice");
    };
    assert_eq!(holder.create_revision, revision);
    // The waiters are not confused by names with the same prefix.
    etcd.barrier("b2").hold().await.unwrap();
    let waiting = [
        spawn_waiter(&cluster, &barrier).await,
        spawn_waiter(&cluster, &other.barrier("b")).await,
    ];
    let late = barrier.wait().within(SECOND / 20).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    etcd.barrier("b2").release().await.unwrap();
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    // Anybody can release it.
    assert!(other.barrier("b").release().await.unwrap());
    for waiting in waiting {
        timeout(TEST_TIMEOUT, waiting)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
    assert!(barrier.hold().await.unwrap().is_new());
    // As the Go client and etcdctl release it.
    etcd.delete("b").await.unwrap();
    timeout(TEST_TIMEOUT, barrier.wait().into_future())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn concurrent_holds_succeed_once() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mut holds = Vec::new();
    for _ in 0..8 {
        let barrier = etcd.barrier("b");
        holds.push(tokio::spawn(async move { barrier.hold().await.unwrap() }));
    }
    let mut held = 0;
    for task in holds {
        held += usize::from(task.await.unwrap().is_new());
    }
    assert_eq!(held, 1);
    until_async("no lease is left", async || {
        etcd.leases().await.unwrap().leases.is_empty()
    })
    .await;
    assert!(etcd.barrier("b").is_held().await.unwrap());
}

#[tokio::test]
async fn cancelled_hold_leaves_no_key_and_no_lease() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let barrier = etcd.barrier("b");
    for step in 0..20 {
        let time = Duration::from_micros(300 * step);
        if timeout(time, barrier.hold()).await.is_ok() {
            barrier.release().await.unwrap();
        }
        // Nobody else holds this barrier, so what is left belongs to the cancelled hold.
        until_async("the barrier is not held", async || {
            !barrier.is_held().await.unwrap()
        })
        .await;
    }
    until_async("no key and no lease is left", async || {
        let (key, leases) = (etcd.get("b").await.unwrap(), etcd.leases().await.unwrap());
        key.count == 0 && leases.leases.is_empty()
    })
    .await;
    hold(SECOND / 5).await;
    assert!(!barrier.is_held().await.unwrap());
}

#[tokio::test]
async fn barrier_of_session_is_released_with_its_lease() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(LONG).await.unwrap();
    let barrier = session.barrier("b");
    assert!(barrier.hold().await.unwrap().is_new());
    let lease = session.lease().unwrap();
    assert_eq!(etcd.get("b").await.unwrap().first().unwrap().lease, lease);
    let waiting = spawn_waiter(&cluster, &etcd.barrier("b")).await;
    session.close().await.unwrap();
    timeout(TEST_TIMEOUT, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let lost = barrier.hold().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::SessionLost);
}

#[tokio::test]
async fn waiter_survives_compaction_and_lost_connection() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let barrier = etcd.barrier("b");
    barrier.hold().await.unwrap();
    let (released, released_and_held) = (
        spawn_waiter(&cluster, &barrier).await,
        spawn_waiter(&cluster, &etcd.barrier("b")).await,
    );
    cluster.member(0).client_link().set(Fault::Refuse);
    cluster.member(0).client_link().reset_now();
    // The waiters are cut off while the barrier is released, held again, and the revisions are compacted.
    assert!(direct.barrier("b").release().await.unwrap());
    assert!(direct.barrier("b").hold().await.unwrap().is_new());
    let last = direct.put("other", "1").await.unwrap().header.revision;
    direct.compact(last).await.unwrap();
    cluster.heal();
    for waiting in [released, released_and_held] {
        timeout(TEST_TIMEOUT, waiting)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
    // The later hold is not affected.
    assert!(barrier.is_held().await.unwrap());
}

#[tokio::test]
async fn outage_during_hold_and_release_is_waited_for() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let barrier = etcd.barrier("b");
    for _ in 0..2 {
        cluster.member(0).kill();
        let task = barrier.clone();
        let hold = tokio::spawn(async move { task.hold().await });
        cluster.start_all().await;
        // The deadline may pass first on a busy machine.
        match hold.await.unwrap() {
            Ok(outcome) => assert!(outcome.is_new()),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                until_async("the barrier is not held", async || {
                    barrier.is_held().await.is_ok_and(|held| !held)
                })
                .await;
                assert!(barrier.hold().await.unwrap().is_new());
            }
        }
        assert!(barrier.release().await.unwrap());
    }
    assert_eq!(etcd.get("b").await.unwrap().count, 0);
}

#[tokio::test]
async fn invalid_name_and_shutdown_are_reported() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let nameless = etcd.barrier("");
    for error in [
        nameless.hold().await.unwrap_err(),
        nameless.release().await.unwrap_err(),
        nameless.is_held().await.unwrap_err(),
        nameless.wait().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let barrier = etcd.barrier("b");
    barrier.hold().await.unwrap();
    let waiting = tokio::spawn(barrier.wait().into_future());
    etcd.shutdown().await;
    let ended = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Shutdown);
    assert_eq!(
        barrier.hold().await.unwrap_err().kind(),
        ErrorKind::Shutdown
    );
}

#[actix::test]
async fn actors_receive_release() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let barrier = etcd.barrier("b");
    barrier.hold().await.unwrap();
    let (events, recipient) = record_messages::<BarrierEvent>();
    let _subscription = barrier.wait().deliver_to(recipient);
    let (unwanted, recipient) = record_messages::<BarrierEvent>();
    drop(barrier.wait().deliver_to(recipient));
    hold(SECOND / 20).await;
    assert!(events.lock().unwrap().is_empty());
    barrier.release().await.unwrap();
    until("the actor is released", || {
        matches!(events.lock().unwrap()[..], [BarrierEvent::Released])
    })
    .await;
    assert!(unwanted.lock().unwrap().is_empty());
    barrier.hold().await.unwrap();
    let (events, recipient) = record_messages::<BarrierEvent>();
    let _subscription = barrier.wait().deliver_to(recipient);
    etcd.clone().shutdown().await;
    until("the actor receives the end of the client", || {
        matches!(events.lock().unwrap()[..], [BarrierEvent::Failed(_)])
    })
    .await;
}
