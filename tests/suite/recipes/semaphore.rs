//! Semaphores on a real cluster: never more holders than permits, first come first served, and no key left behind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind,
    recipes::{
        semaphore::{LockEvent, Permit},
        session::Session,
    },
};
use testbed::Cluster;
use tokio::{task::JoinHandle, time::timeout};

use crate::support::{
    connected_cluster::StartWithClient,
    lock_waiters::{key_count, key_names, spawn_in_queue, until_key_count},
    message_recorder::record_messages,
    wait::{TEST_TIMEOUT, hold, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

async fn session(etcd: &Client) -> Session {
    etcd.session(LONG).await.unwrap()
}

async fn acquired(waiting: JoinHandle<actix_etcd::Result<Permit>>) -> Permit {
    timeout(TEST_TIMEOUT, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn permits_are_given_in_order_whoever_releases() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let (of_a, of_b) = (a.semaphore("s", 3), b.semaphore("s", 3));
    // Two tasks of one session.
    let (first, second) = (of_a.acquire().await.unwrap(), of_a.acquire().await.unwrap());
    let third = of_b.acquire().await.unwrap();
    let lease = a.lease().unwrap();
    assert_eq!(first.key(), &format!("s/permits/{lease:x}"));
    assert_eq!(second.key(), &format!("s/permits/{lease:x}-1"));
    assert!(first.token() < second.token() && second.token() < third.token());
    let mut waiting = Vec::new();
    for number in 0..8 {
        let semaphore = if number % 2 == 0 { &of_a } else { &of_b };
        waiting.push(spawn_in_queue(&etcd, "s/", semaphore.acquire()).await);
    }
    // Neither the oldest nor the newest holder is first.
    second.release().await.unwrap();
    let mut held = vec![acquired(waiting.remove(0)).await];
    hold(SECOND / 10).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    drop(third);
    held.push(acquired(waiting.remove(0)).await);
    // A waiter in the middle gives up.
    waiting.remove(1).abort();
    until_key_count(&etcd, "s/", 8).await;
    first.release().await.unwrap();
    held.push(acquired(waiting.remove(0)).await);
    while !waiting.is_empty() {
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        held.remove(waiting.len() % 3).release().await.unwrap();
        held.push(acquired(waiting.remove(0)).await);
    }
    for permit in held {
        permit.release().await.unwrap();
    }
    assert_eq!(key_count(&etcd, "s/").await, 0);
}

#[tokio::test]
async fn several_permits_released_at_once_admit_as_many() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let semaphore = session.semaphore("s", 4);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(semaphore.acquire().await.unwrap());
    }
    let mut waiting = Vec::new();
    for _ in 0..12 {
        waiting.push(spawn_in_queue(&etcd, "s/", semaphore.acquire()).await);
    }
    for _ in 0..3 {
        drop(std::mem::take(&mut held));
        for next in waiting.drain(..4) {
            held.push(acquired(next).await);
        }
        hold(SECOND / 20).await;
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    }
}

#[tokio::test]
async fn waiting_requests_watch_once_and_seldom_read() {
    const WAITING: u32 = 24;
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let member = cluster.member(0);
    let session = session(&etcd).await;
    let semaphore = session.semaphore("s", 3);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(semaphore.acquire().await.unwrap());
    }
    let watchers = async || member.metric("etcd_debugging_mvcc_watcher_total").await;
    let before = watchers().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..WAITING {
        waiting.push(spawn_in_queue(&etcd, "s/", semaphore.acquire()).await);
    }
    until_async("all requests watch", async || {
        watchers().await == Some(before + f64::from(WAITING))
    })
    .await;
    let ranges = async || member.metric("etcd_mvcc_range_total").await.unwrap();
    // The last reads of the requests.
    hold(SECOND / 5).await;
    let before = ranges().await;
    while !waiting.is_empty() {
        held.remove(0).release().await.unwrap();
        held.push(acquired(waiting.remove(0)).await);
    }
    let reads = (ranges().await - before) / f64::from(WAITING);
    println!("{reads:.1} reads per release");
    // Each transaction counts several reads: its conditions and its operations.
    assert!(reads < 15.0, "{reads} reads per release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_never_exceed_permits() {
    const PERMITS: usize = 3;
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let session = Arc::new(session(&etcd).await);
        for task in 0..5 {
            let (session, now, most, etcd) =
                (session.clone(), now.clone(), most.clone(), etcd.clone());
            tasks.push(tokio::spawn(async move {
                let semaphore = session.semaphore("s", 3);
                for _ in 0..8 {
                    let permit = match semaphore.try_acquire().await.unwrap() {
                        Some(permit) => permit,
                        None if task == 0 => continue,
                        None => semaphore.acquire().await.unwrap(),
                    };
                    let holders = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(holders, Ordering::SeqCst);
                    for _ in 0..3 {
                        etcd.get("pause").await.unwrap();
                    }
                    now.fetch_sub(1, Ordering::SeqCst);
                    permit.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let most = most.load(Ordering::SeqCst);
    assert!(
        (2..=PERMITS).contains(&most),
        "{most} permits were held at the same time"
    );
    assert_eq!(key_count(&etcd, "s/").await, 0);
}

#[tokio::test]
async fn concurrent_tries_take_exactly_the_permits() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let mut tries = Vec::new();
    for number in 0..10 {
        let session = if number % 2 == 0 { &a } else { &b };
        let semaphore = session.semaphore("s", 4);
        tries.push(tokio::spawn(async move {
            semaphore.try_acquire().await.unwrap()
        }));
    }
    let mut held = Vec::new();
    for attempt in tries {
        held.extend(attempt.await.unwrap());
    }
    assert_eq!(held.len(), 4);
    let before = etcd.get("s/").prefix().await.unwrap();
    assert_eq!(before.count, 4);
    assert!(a.semaphore("s", 4).try_acquire().await.unwrap().is_none());
    let after = etcd.get("s/").prefix().await.unwrap();
    assert_eq!(
        before.header.revision, after.header.revision,
        "try_acquire wrote to etcd"
    );
    let late = b
        .semaphore("s", 4)
        .acquire_within(SECOND / 10)
        .await
        .unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    until_key_count(&etcd, "s/", 4).await;
    // A larger semaphore of the same name has room.
    let fifth = a.semaphore("s", 5).try_acquire().await.unwrap();
    assert!(fifth.is_some());
}

#[tokio::test]
async fn dead_holder_frees_its_permits_with_its_lease() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let (of_a, of_b) = (a.semaphore("s", 2), b.semaphore("s", 2));
    let held = (of_a.acquire().await.unwrap(), of_a.acquire().await.unwrap());
    let first = spawn_in_queue(&etcd, "s/", of_b.acquire()).await;
    let second = spawn_in_queue(&etcd, "s/", of_b.acquire()).await;
    etcd.revoke(a.lease().unwrap()).await.unwrap();
    let _permits = (acquired(first).await, acquired(second).await);
    timeout(TEST_TIMEOUT, held.0.lost()).await.unwrap();
    let lost = held.1.release().await.unwrap_err();
    assert!(
        matches!(lost.kind(), ErrorKind::LockLost | ErrorKind::SessionLost),
        "{lost}"
    );
    assert_eq!(key_count(&etcd, "s/").await, 2);
}

#[tokio::test]
async fn deleted_request_fails_at_once() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let semaphore = a.semaphore("s", 2);
    let _held = (
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    let waiting = spawn_in_queue(&etcd, "s/", b.semaphore("s", 2).acquire()).await;
    let lease = b.lease().unwrap();
    etcd.delete(format!("s/permits/{lease:x}")).await.unwrap();
    let deleted = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    assert_eq!(deleted.unwrap_err().kind(), ErrorKind::LockLost);
}

#[tokio::test]
async fn cancelled_requests_leave_no_key() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let held = a.semaphore("s", 1).acquire().await.unwrap();
    let two = b.semaphore("s", 2);
    let second = two.acquire().await.unwrap();
    for step in 0..20 {
        assert!(
            timeout(Duration::from_millis(step), two.acquire())
                .await
                .is_err()
        );
        let _ = timeout(Duration::from_millis(step), two.try_acquire()).await;
    }
    until_key_count(&etcd, "s/", 2).await;
    drop((held, second));
    until_key_count(&etcd, "s/", 0).await;
}

#[tokio::test]
async fn invalid_and_blocked_semaphores_are_reported() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let refused = [
        session.semaphore("s", 0).acquire().await.unwrap_err(),
        session.semaphore("s", 0).try_acquire().await.unwrap_err(),
        session.semaphore("/", 1).acquire().await.unwrap_err(),
        etcd.semaphore("s", 0).await.unwrap_err(),
        etcd.semaphore("", 1).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    etcd.put("s/permits/data", "").await.unwrap();
    let permit = session.semaphore("s", 2).acquire().await.unwrap();
    for error in [
        session.semaphore("s", 2).acquire().await.unwrap_err(),
        session.semaphore("s", 2).try_acquire().await.unwrap_err(),
        session.semaphore("s", 1).try_acquire().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::LockBlocked);
        assert!(error.to_string().contains("s/permits/data"), "{error}");
    }
    let blocked = session.mutex("s").lock().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    permit.release().await.unwrap();
    assert_eq!(key_names(&etcd, "s/").await, ["s/permits/data"]);
}

#[actix::test]
async fn actors_hold_permits() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let semaphore = etcd.semaphore("s", 2).ttl(LONG).await.unwrap();
    let mut claims = Vec::new();
    let mut received = Vec::new();
    for _ in 0..3 {
        let (events, recipient) = record_messages::<LockEvent>();
        claims.push(semaphore.acquire().deliver_to(recipient));
        received.push(events);
    }
    until_key_count(&etcd, "s/", 3).await;
    let holders = || {
        let is_held = |events: &&crate::support::message_recorder::Received<LockEvent>| {
            matches!(events.lock().unwrap()[..], [LockEvent::Acquired(_)])
        };
        received.iter().filter(is_held).count()
    };
    until("two actors have permits", || holders() == 2).await;
    drop(semaphore);
    let released = received
        .iter()
        .position(|events| !events.lock().unwrap().is_empty());
    claims.remove(released.unwrap()).release().await;
    until("the third actor has a permit", || {
        received
            .iter()
            .all(|events| !events.lock().unwrap().is_empty())
    })
    .await;
    drop(claims);
    until_key_count(&etcd, "s/", 0).await;
    until_async("the session is closed", async || {
        etcd.leases().await.unwrap().leases.is_empty()
    })
    .await;
}
