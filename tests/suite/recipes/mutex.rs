//! Locks on a real cluster: one holder at a time, in the order of arrival, and nothing left behind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, ErrorKind,
    kv::put,
    lease::LeaseLost,
    recipes::{mutex::OwnershipLost, session::Session},
};
use testbed::{Cluster, Fault};
use tokio::{task::JoinHandle, time::timeout};

use crate::support::wait::{hold, until, until_async};

const SECOND: Duration = Duration::from_secs(1);
/// A lease that does not end by itself in a test.
const LONG: Duration = Duration::from_secs(60);

async fn cluster_and_client(members: usize) -> (Cluster, Client) {
    let cluster = Cluster::start(members).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    (cluster, etcd)
}

async fn session(etcd: &Client) -> Session {
    etcd.session(LONG).await.unwrap()
}

async fn keys(etcd: &Client, prefix: &str) -> i64 {
    etcd.get(prefix).prefix().await.unwrap().count
}

/// A task that waits for the lock, once its key is in the queue.
async fn waiter<T: Send + 'static>(
    etcd: &Client,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let before = keys(etcd, "l/").await;
    let waiting = tokio::spawn(work);
    until_async("its key is in the queue", async || {
        keys(etcd, "l/").await > before
    })
    .await;
    waiting
}

#[tokio::test]
async fn a_lock_has_the_key_of_its_session_and_its_create_revision_as_token() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let session = session(&etcd).await;
    let guard = session.mutex("l").lock().await.unwrap();
    let lease = session.lease().unwrap();
    assert_eq!(guard.key(), &format!("l/{lease:x}"));
    let found = etcd.get(guard.key()).await.unwrap();
    let found = found.first().unwrap();
    assert_eq!((found.create_revision, found.lease), (guard.token(), lease));
    assert!(guard.remaining() > LONG / 2);
    guard.unlock().await.unwrap();
    assert_eq!(keys(&etcd, "l/").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_and_tasks_of_one_session_exclude_each_other() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let session = Arc::new(session(&etcd).await);
        for _ in 0..2 {
            let (session, inside, etcd) = (session.clone(), inside.clone(), etcd.clone());
            tasks.push(tokio::spawn(async move {
                let mutex = session.mutex("l");
                for _ in 0..5 {
                    let guard = mutex.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    // A read and a write that lose counts if two do them at once.
                    let found = etcd.get("counter").await.unwrap();
                    let count: u32 = found
                        .first()
                        .map_or(0, |kv| String::from_utf8_lossy(&kv.value).parse().unwrap());
                    etcd.put("counter", (count + 1).to_string()).await.unwrap();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let found = etcd.get("counter").await.unwrap();
    assert_eq!(found.first().unwrap().value, "30");
    assert_eq!(keys(&etcd, "l/").await, 0);
}

#[tokio::test]
async fn who_waits_is_served_in_the_order_of_arrival_with_growing_tokens() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let sessions = [
        session(&etcd).await,
        session(&etcd).await,
        session(&etcd).await,
        session(&etcd).await,
    ];
    let held = sessions[0].mutex("l").lock().await.unwrap();
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for (number, session) in sessions.iter().enumerate().skip(1) {
        let (mutex, served) = (session.mutex("l"), served.clone());
        let wait = async move {
            let guard = mutex.lock().await.unwrap();
            served.lock().unwrap().push((number, guard.token()));
            guard.unlock().await.unwrap();
        };
        waiting.push(waiter(&etcd, wait).await);
    }
    assert!(served.lock().unwrap().is_empty());
    let first = held.token();
    held.unlock().await.unwrap();
    for waiting in waiting {
        waiting.await.unwrap();
    }
    let served = served.lock().unwrap().clone();
    assert_eq!(served.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(first < served[0].1 && served.is_sorted_by_key(|s| s.1));
}

#[tokio::test]
async fn a_lock_that_is_given_back_wakes_only_the_next_in_the_queue() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let first = session(&etcd).await;
    let held = first.mutex("l").lock().await.unwrap();
    let sessions = [
        session(&etcd).await,
        session(&etcd).await,
        session(&etcd).await,
    ];
    let mut waiting = Vec::new();
    for session in &sessions {
        let mutex = session.mutex("l");
        waiting.push(waiter(&etcd, async move { mutex.lock().await.unwrap() }).await);
    }
    let member = cluster.member(0);
    until_async("all of them watch", async || {
        member.metric("etcd_debugging_mvcc_watcher_total").await == Some(3.0)
    })
    .await;
    let told = async || member.metric("etcd_debugging_mvcc_events_total").await;
    let before = told().await.unwrap();
    held.unlock().await.unwrap();
    let _next = waiting.remove(0).await.unwrap();
    assert_eq!(told().await, Some(before + 1.0));
}

#[tokio::test]
async fn a_lock_that_is_held_is_not_had_by_trying_or_in_a_short_time() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let guard = a.mutex("l").try_lock().await.unwrap().unwrap();
    let before = etcd.get("l/").prefix().await.unwrap();
    assert!(b.mutex("l").try_lock().await.unwrap().is_none());
    assert!(
        a.mutex("l").try_lock().await.unwrap().is_none(),
        "nor twice"
    );
    let after = etcd.get("l/").prefix().await.unwrap();
    assert_eq!(
        before.header.revision, after.header.revision,
        "trying writes nothing"
    );
    let late = b.mutex("l").lock_within(SECOND / 5).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    until_async("who gave up has left the queue", async || {
        keys(&etcd, "l/").await == 1
    })
    .await;
    drop(guard);
    let guard = b.mutex("l").lock_within(10 * SECOND).await.unwrap();
    guard.unlock().await.unwrap();
    assert!(b.mutex("l").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_waiter_that_is_dropped_at_any_moment_leaves_nothing_behind() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let guard = a.mutex("l").lock().await.unwrap();
    let mutex = b.mutex("l");
    for step in 0..20 {
        let cut = timeout(Duration::from_millis(step), mutex.lock());
        assert!(cut.await.is_err());
    }
    until_async("only the holder's key is there", async || {
        keys(&etcd, "l/").await == 1
    })
    .await;
    drop(guard);
    until_async("the holder's key is gone", async || {
        keys(&etcd, "l/").await == 0
    })
    .await;
    hold(SECOND / 5).await;
    assert_eq!(keys(&etcd, "l/").await, 0);
    drop(b.mutex("l").lock_within(10 * SECOND).await.unwrap());
}

#[tokio::test]
async fn a_transaction_under_a_lost_lock_does_nothing() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let old = a.mutex("l").lock().await.unwrap();
    let done = old.txn().then([put("work", "old")]).await.unwrap();
    assert!(done.succeeded);
    // By hand, as an operator would.
    etcd.delete(old.key()).await.unwrap();
    let new = b.mutex("l").lock().await.unwrap();
    assert!(new.token() > old.token());
    let done = old.txn().then([put("work", "stale")]).await.unwrap();
    assert!(!done.succeeded);
    let found = etcd.get("work").await.unwrap();
    assert_eq!(found.first().unwrap().value, "old");
    let lost = old.unlock().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LockLost);
    let done = new.txn().then([put("work", "new")]).await.unwrap();
    assert!(done.succeeded, "somebody else's lock was not given back");
}

#[tokio::test]
async fn the_loss_of_a_lock_is_told_whichever_way_it_is_lost() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let a = session(&etcd).await;
    let guard = a.mutex("l").lock().await.unwrap();
    let lost = guard.lost();
    etcd.delete(guard.key()).await.unwrap();
    assert_eq!(
        timeout(5 * SECOND, lost).await.unwrap(),
        OwnershipLost::Taken
    );
    drop(guard);

    let short = etcd.session(2 * SECOND).await.unwrap();
    let guard = short.mutex("l").lock().await.unwrap();
    let lost = guard.lost();
    etcd.revoke(short.lease().unwrap()).await.unwrap();
    let loss = timeout(5 * SECOND, lost).await.unwrap();
    assert!(
        matches!(
            loss,
            OwnershipLost::Taken | OwnershipLost::Session(LeaseLost::Revoked)
        ),
        "{loss:?}"
    );

    let guard = a.mutex("l").lock().await.unwrap();
    let lost = guard.lost();
    a.close().await.unwrap();
    assert_eq!(
        timeout(5 * SECOND, lost).await.unwrap(),
        OwnershipLost::Closed
    );
    drop(guard);
}

// On threads of their own, who holds and who waits do not keep each other from hearing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_hears_of_it_before_anybody_else_has_the_lock() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let holder = etcd.session(2 * SECOND).await.unwrap();
    let other = session(&direct).await;
    let mutex = holder.mutex("l");
    // Its key is on the server before the holder hears of it: only the holder can say that it holds.
    let (holds, held) = tokio::sync::oneshot::channel();
    let work = tokio::spawn(async move {
        let hold_on = |_| {
            holds.send(()).expect("the test waits for it");
            std::future::pending::<()>()
        };
        let cancelled = mutex.scope(hold_on).await;
        (cancelled.unwrap_err().kind(), Instant::now())
    });
    held.await.unwrap();
    cluster.member(0).client_link().set(Fault::Freeze);
    let guard = other.mutex("l").lock().await.unwrap();
    let had = Instant::now();
    let work = timeout(10 * SECOND, work).await.expect("it is cancelled");
    let (kind, cancelled) = work.unwrap();
    assert_eq!(kind, ErrorKind::LockLost);
    assert!(cancelled < had, "late by {:?}", cancelled - had);
    cluster.heal();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_lost_session_ends_waiting_at_once() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let (a, b) = (
        session(&etcd).await,
        etcd.session(2 * SECOND).await.unwrap(),
    );
    let guard = a.mutex("l").lock().await.unwrap();
    let mutex = b.mutex("l");
    let waiting = waiter(&etcd, async move { mutex.lock().await }).await;
    etcd.revoke(b.lease().unwrap()).await.unwrap();
    let ended = timeout(5 * SECOND, waiting).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::SessionLost);
    let later = b.mutex("l").lock().await.unwrap_err();
    assert_eq!(later.kind(), ErrorKind::SessionLost);

    let c = session(&etcd).await;
    let mutex = c.mutex("l");
    let waiting = waiter(&etcd, async move { mutex.lock().await }).await;
    drop(c);
    let ended = timeout(5 * SECOND, waiting).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::SessionLost);
    drop(guard);
}

#[tokio::test]
async fn a_session_that_heals_loses_its_locks_but_can_lock_again() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let session = etcd.session(2 * SECOND).heal().await.unwrap();
    let mutex = session.mutex("l");
    let guard = mutex.lock().await.unwrap();
    let before = session.lease();
    etcd.revoke(guard.lease()).await.unwrap();
    timeout(5 * SECOND, guard.lost()).await.unwrap();
    until("the session is healed", || session.lease() != before).await;
    drop(guard);
    let guard = timeout(10 * SECOND, async {
        loop {
            // Between the new lease and the news of it the old one may still be asked.
            if let Ok(guard) = mutex.lock().await {
                return guard;
            }
        }
    });
    let guard = guard.await.unwrap();
    assert_eq!(Some(guard.lease()), session.lease());
}

#[tokio::test]
async fn waiting_survives_a_compaction_and_a_lost_connection() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let guard = a.mutex("l").lock().await.unwrap();
    let mutex = b.mutex("l");
    let waiting = waiter(&etcd, async move { mutex.lock().await }).await;
    cluster.member(0).client_link().set(Fault::Refuse);
    cluster.member(0).client_link().reset_now();
    // Unseen by the waiter: deleted, and compacted away.
    let gone = direct.delete(guard.key()).await.unwrap().header.revision;
    let last = direct.put("other", "1").await.unwrap().header.revision;
    assert!(gone < last);
    direct.compact(last).await.unwrap();
    cluster.heal();
    let second = timeout(20 * SECOND, waiting).await.unwrap().unwrap();
    assert!(second.unwrap().token() > guard.token());
}

#[tokio::test]
async fn shutdown_ends_holding_and_waiting() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let guard = a.mutex("l").lock().await.unwrap();
    let mutex = b.mutex("l");
    let waiting = waiter(&other, async move { mutex.lock().await }).await;
    let lost = guard.lost();
    etcd.shutdown().await;
    assert_eq!(lost.await, OwnershipLost::Session(LeaseLost::Shutdown));
    assert!(waiting.await.unwrap().is_err());
    assert_eq!(keys(&other, "l/").await, 0);
    drop(guard);
}
