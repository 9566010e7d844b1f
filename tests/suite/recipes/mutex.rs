//! Locks on a real cluster: one holder at a time, first come first served, and no key left behind.

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

use crate::support::{
    connected_cluster::{StartWithClient, connect},
    wait::{hold, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

async fn session(etcd: &Client) -> Session {
    etcd.session(LONG).await.unwrap()
}

async fn key_count(etcd: &Client, prefix: &str) -> i64 {
    etcd.get(prefix).prefix().await.unwrap().count
}

/// Spawns a task that waits for the lock `l`. Returns when the key of the task is in the queue.
async fn spawn_waiter<T: Send + 'static>(
    etcd: &Client,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let before = key_count(etcd, "l/").await;
    let waiting = tokio::spawn(work);
    until_async("the key of the waiter is in the queue", async || {
        key_count(etcd, "l/").await > before
    })
    .await;
    waiting
}

#[tokio::test]
async fn fencing_token_is_create_revision_of_key() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let guard = session.mutex("l").lock().await.unwrap();
    let lease = session.lease().unwrap();
    assert_eq!(guard.key(), &format!("l/{lease:x}"));
    let found = etcd.get(guard.key()).await.unwrap();
    let found = found.first().unwrap();
    assert_eq!((found.create_revision, found.lease), (guard.token(), lease));
    assert!(guard.remaining() > LONG / 2);
    guard.unlock().await.unwrap();
    assert_eq!(key_count(&etcd, "l/").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_excludes_sessions_and_tasks() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let holders = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let session = Arc::new(session(&etcd).await);
        for _ in 0..2 {
            let (session, holders, etcd) = (session.clone(), holders.clone(), etcd.clone());
            tasks.push(tokio::spawn(async move {
                let mutex = session.mutex("l");
                for _ in 0..5 {
                    let guard = mutex.lock().await.unwrap();
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                    // A read and a write that lose an increment if two tasks do so at the same time.
                    let found = etcd.get("counter").await.unwrap();
                    let count: u32 = found
                        .first()
                        .map_or(0, |kv| String::from_utf8_lossy(&kv.value).parse().unwrap());
                    etcd.put("counter", (count + 1).to_string()).await.unwrap();
                    holders.fetch_sub(1, Ordering::SeqCst);
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
    assert_eq!(key_count(&etcd, "l/").await, 0);
}

#[tokio::test]
async fn waiters_acquire_in_order_with_growing_tokens() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let sessions = [
        session(&etcd).await,
        session(&etcd).await,
        session(&etcd).await,
        session(&etcd).await,
    ];
    let held = sessions[0].mutex("l").lock().await.unwrap();
    let acquired = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for (number, session) in sessions.iter().enumerate().skip(1) {
        let (mutex, acquired) = (session.mutex("l"), acquired.clone());
        let wait = async move {
            let guard = mutex.lock().await.unwrap();
            acquired.lock().unwrap().push((number, guard.token()));
            guard.unlock().await.unwrap();
        };
        waiting.push(spawn_waiter(&etcd, wait).await);
    }
    assert!(acquired.lock().unwrap().is_empty());
    let first_token = held.token();
    held.unlock().await.unwrap();
    for waiting in waiting {
        waiting.await.unwrap();
    }
    let acquired = acquired.lock().unwrap().clone();
    assert_eq!(
        acquired
            .iter()
            .map(|(number, _)| *number)
            .collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(first_token < acquired[0].1 && acquired.is_sorted_by_key(|(_, token)| *token));
}

#[tokio::test]
async fn unlock_wakes_only_the_next_waiter() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let member = cluster.member(0);
    let watchers = async || member.metric("etcd_debugging_mvcc_watcher_total").await;
    // A proxy has watches of its own.
    let before = watchers().await.unwrap();
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
        waiting.push(spawn_waiter(&etcd, async move { mutex.lock().await.unwrap() }).await);
    }
    until_async("all waiters watch", async || {
        watchers().await == Some(before + 3.0)
    })
    .await;
    let events_sent = async || member.metric("etcd_debugging_mvcc_events_total").await;
    let before = events_sent().await.unwrap();
    held.unlock().await.unwrap();
    let _next = waiting.remove(0).await.unwrap();
    assert_eq!(events_sent().await, Some(before + 1.0));
}

#[tokio::test]
async fn held_lock_fails_try_lock_and_short_timeout() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let guard = a.mutex("l").try_lock().await.unwrap().unwrap();
    let before = etcd.get("l/").prefix().await.unwrap();
    assert!(b.mutex("l").try_lock().await.unwrap().is_none());
    assert!(
        a.mutex("l").try_lock().await.unwrap().is_none(),
        "the holding session acquired its lock twice"
    );
    let after = etcd.get("l/").prefix().await.unwrap();
    assert_eq!(
        before.header.revision, after.header.revision,
        "try_lock wrote to etcd"
    );
    let late = b.mutex("l").lock_within(SECOND / 5).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    until_async("the waiter has left the queue", async || {
        key_count(&etcd, "l/").await == 1
    })
    .await;
    drop(guard);
    let guard = b.mutex("l").lock_within(10 * SECOND).await.unwrap();
    guard.unlock().await.unwrap();
    assert!(b.mutex("l").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn waiter_cancelled_at_any_step_leaves_no_key() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let guard = a.mutex("l").lock().await.unwrap();
    let mutex = b.mutex("l");
    for step in 0..20 {
        let cancelled = timeout(Duration::from_millis(step), mutex.lock());
        assert!(cancelled.await.is_err());
    }
    until_async("only the holder's key is left", async || {
        key_count(&etcd, "l/").await == 1
    })
    .await;
    drop(guard);
    until_async("the holder's key is deleted", async || {
        key_count(&etcd, "l/").await == 0
    })
    .await;
    hold(SECOND / 5).await;
    assert_eq!(key_count(&etcd, "l/").await, 0);
    drop(b.mutex("l").lock_within(10 * SECOND).await.unwrap());
}

#[tokio::test]
async fn transaction_under_lost_lock_is_not_applied() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let old = a.mutex("l").lock().await.unwrap();
    let write = old.txn().then([put("work", "old")]).await.unwrap();
    assert!(write.succeeded);
    // As an operator would do it.
    etcd.delete(old.key()).await.unwrap();
    let new = b.mutex("l").lock().await.unwrap();
    assert!(new.token() > old.token());
    let write = old.txn().then([put("work", "stale")]).await.unwrap();
    assert!(!write.succeeded);
    let found = etcd.get("work").await.unwrap();
    assert_eq!(found.first().unwrap().value, "old");
    let lost = old.unlock().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LockLost);
    let write = new.txn().then([put("work", "new")]).await.unwrap();
    assert!(
        write.succeeded,
        "unlocking the old guard released the new lock"
    );
}

#[tokio::test]
async fn lost_reports_every_way_of_losing_a_lock() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
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

// With two threads, the holder and the waiter do not delay each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_holder_is_cancelled_before_next_holder() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = connect(cluster.direct_endpoints()).await;
    let holder = etcd.session(2 * SECOND).await.unwrap();
    let other = session(&direct).await;
    let mutex = holder.mutex("l");
    // The key exists before the holder receives the response, so the holder itself signals that it holds the lock.
    let (signal_held, held) = tokio::sync::oneshot::channel();
    let work = tokio::spawn(async move {
        let hold_forever = |_| {
            signal_held.send(()).expect("the test waits for the signal");
            std::future::pending::<()>()
        };
        let cancelled = mutex.scope(hold_forever).await;
        (cancelled.unwrap_err().kind(), Instant::now())
    });
    held.await.unwrap();
    cluster.member(0).client_link().set(Fault::Freeze);
    let guard = other.mutex("l").lock().await.unwrap();
    let acquired = Instant::now();
    let work = timeout(10 * SECOND, work)
        .await
        .expect("the work is cancelled");
    let (kind, cancelled) = work.unwrap();
    assert_eq!(kind, ErrorKind::LockLost);
    assert!(
        cancelled < acquired,
        "cancelled too late by {:?}",
        cancelled - acquired
    );
    cluster.heal();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn lost_session_ends_its_waiters() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (
        session(&etcd).await,
        etcd.session(2 * SECOND).await.unwrap(),
    );
    let guard = a.mutex("l").lock().await.unwrap();
    let mutex = b.mutex("l");
    let waiting = spawn_waiter(&etcd, async move { mutex.lock().await }).await;
    etcd.revoke(b.lease().unwrap()).await.unwrap();
    let ended = timeout(5 * SECOND, waiting).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::SessionLost);
    let later = b.mutex("l").lock().await.unwrap_err();
    assert_eq!(later.kind(), ErrorKind::SessionLost);

    let c = session(&etcd).await;
    let mutex = c.mutex("l");
    let waiting = spawn_waiter(&etcd, async move { mutex.lock().await }).await;
    drop(c);
    let ended = timeout(5 * SECOND, waiting).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::SessionLost);
    drop(guard);
}

#[tokio::test]
async fn healed_session_can_lock_again() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
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
            // The mutex may still use the old lease for a moment.
            if let Ok(guard) = mutex.lock().await {
                return guard;
            }
        }
    });
    let guard = guard.await.unwrap();
    assert_eq!(Some(guard.lease()), session.lease());
}

#[tokio::test]
async fn waiter_survives_compaction_and_lost_connection() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let direct = connect(cluster.direct_endpoints()).await;
    let guard = a.mutex("l").lock().await.unwrap();
    let mutex = b.mutex("l");
    let waiting = spawn_waiter(&etcd, async move { mutex.lock().await }).await;
    cluster.member(0).client_link().set(Fault::Refuse);
    cluster.member(0).client_link().reset_now();
    // The waiter is cut off while the key is deleted and the revision compacted.
    let deleted_at = direct.delete(guard.key()).await.unwrap().header.revision;
    let last = direct.put("other", "1").await.unwrap().header.revision;
    assert!(deleted_at < last);
    direct.compact(last).await.unwrap();
    cluster.heal();
    let second = timeout(20 * SECOND, waiting).await.unwrap().unwrap();
    assert!(second.unwrap().token() > guard.token());
}

#[tokio::test]
async fn shutdown_ends_holders_and_waiters() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let other = connect(cluster.endpoints()).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let guard = a.mutex("l").lock().await.unwrap();
    let mutex = b.mutex("l");
    let waiting = spawn_waiter(&other, async move { mutex.lock().await }).await;
    let holding = tokio::spawn(async move {
        let loss = guard.lost().await;
        drop(guard);
        loss
    });
    etcd.shutdown().await;
    let loss = holding.await.unwrap();
    assert_eq!(loss, OwnershipLost::Session(LeaseLost::Shutdown));
    assert!(waiting.await.unwrap().is_err());
    assert_eq!(key_count(&other, "l/").await, 0);
}
