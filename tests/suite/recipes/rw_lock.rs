//! Read-write locks on a real cluster: readers share the lock, writers have it alone, nobody is starved, and no key is left
//! behind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, ErrorKind,
    kv::{get, put},
    lease::LeaseLost,
    recipes::{
        rw_lock::{LockEvent, OwnershipLost},
        session::Session,
    },
};
use testbed::{Cluster, Fault};
use tokio::time::timeout;

use crate::support::{
    connected_cluster::StartWithClient,
    lock_waiters::{key_count, key_names, spawn_in_queue, until_key_count},
    message_recorder::record_messages,
    wait::{TEST_TIMEOUT, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

async fn session(etcd: &Client) -> Session {
    etcd.session(LONG).await.unwrap()
}

#[tokio::test]
async fn readers_share_lock_and_later_readers_wait_behind_writer() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b, c) = (
        session(&etcd).await,
        session(&etcd).await,
        session(&etcd).await,
    );
    let first = a.rw_lock("l").read().await.unwrap();
    let second = b.rw_lock("l").read().await.unwrap();
    assert!(c.rw_lock("l").try_write().await.unwrap().is_none());
    assert!(c.rw_lock("l").try_read().await.unwrap().is_some());
    until_key_count(&etcd, "l/", 2).await;
    let writing = spawn_in_queue(&etcd, "l/", c.rw_lock("l").write()).await;
    let late = spawn_in_queue(&etcd, "l/", a.rw_lock("l").read()).await;
    let before = etcd.get("l/").prefix().await.unwrap();
    assert!(b.rw_lock("l").try_read().await.unwrap().is_none());
    let after = etcd.get("l/").prefix().await.unwrap();
    assert_eq!(
        before.header.revision, after.header.revision,
        "try_read wrote to etcd"
    );
    // The newest reader goes first.
    second.unlock().await.unwrap();
    assert!(!writing.is_finished() && !late.is_finished());
    assert!(first.txn().await.unwrap().succeeded);
    let first_token = first.token();
    first.unlock().await.unwrap();
    let writer = timeout(TEST_TIMEOUT, writing)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(writer.token() > first_token);
    assert!(!late.is_finished());
    let writer_token = writer.token();
    drop(writer);
    let reader = timeout(TEST_TIMEOUT, late).await.unwrap().unwrap().unwrap();
    assert!(reader.token() > writer_token);
    reader.unlock().await.unwrap();
    assert_eq!(key_count(&etcd, "l/").await, 0);
    let writer = b.rw_lock("l").try_write().await.unwrap().unwrap();
    assert!(b.rw_lock("l").try_read().await.unwrap().is_none());
    writer.unlock().await.unwrap();
}

#[tokio::test]
async fn keys_have_layout_of_go_client() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let lease = session.lease().unwrap();
    let lock = session.rw_lock("l");
    let (first, second) = (lock.read().await.unwrap(), lock.read().await.unwrap());
    assert_eq!(first.key(), &format!("l/read/{lease:x}"));
    assert_eq!(second.key(), &format!("l/read/{lease:x}-1"));
    for held in [&first, &second] {
        let found = etcd.get(held.key()).await.unwrap();
        let found = found.first().unwrap();
        assert_eq!((found.create_revision, found.lease), (held.token(), lease));
        assert_eq!(found.mod_revision, found.create_revision);
        assert!(found.value.is_empty());
    }
    first.unlock().await.unwrap();
    // The number of a claim is used again.
    let third = lock.read().await.unwrap();
    assert_eq!(third.key(), &format!("l/read/{lease:x}"));
    drop((second, third));
    let writer = lock.write().await.unwrap();
    assert_eq!(writer.key(), &format!("l/write/{lease:x}"));
    writer.unlock().await.unwrap();
}

/// Puts keys as the Go client does: the time in nanoseconds, bound to a lease.
#[tokio::test]
async fn keys_of_go_client_block_readers_and_writers() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let go = etcd.lease(LONG).await.unwrap();
    let session = session(&etcd).await;
    let lock = session.rw_lock("l");
    etcd.put("l/read/1718000000000000000", "")
        .lease(&go)
        .await
        .unwrap();
    let reader = lock.read().await.unwrap();
    let writing = spawn_in_queue(&etcd, "l/write/", lock.write()).await;
    reader.unlock().await.unwrap();
    etcd.put("l/write/1718000000000000001", "")
        .lease(&go)
        .await
        .unwrap();
    let reading = spawn_in_queue(&etcd, "l/read/", lock.read()).await;
    assert!(!writing.is_finished());
    etcd.delete("l/read/1718000000000000000").await.unwrap();
    let writer = timeout(TEST_TIMEOUT, writing)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    writer.unlock().await.unwrap();
    assert!(lock.try_read().await.unwrap().is_none());
    assert!(
        !reading.is_finished(),
        "the reader waits for the writer of the Go client"
    );
    etcd.delete("l/write/1718000000000000001").await.unwrap();
    timeout(TEST_TIMEOUT, reading)
        .await
        .unwrap()
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_and_tasks_never_overlap_a_writer() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (readers, writers) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let most_readers = Arc::<AtomicUsize>::default();
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let session = Arc::new(session(&etcd).await);
        for task in 0..4 {
            let (session, readers, writers) = (session.clone(), readers.clone(), writers.clone());
            let (most_readers, etcd) = (most_readers.clone(), etcd.clone());
            tasks.push(tokio::spawn(async move {
                let lock = session.rw_lock("l");
                for _ in 0..8 {
                    if task == 0 {
                        let guard = lock.write().await.unwrap();
                        assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(readers.load(Ordering::SeqCst), 0);
                        etcd.get("pause").await.unwrap();
                        assert_eq!(readers.load(Ordering::SeqCst), 0);
                        writers.fetch_sub(1, Ordering::SeqCst);
                        guard.unlock().await.unwrap();
                    } else {
                        let guard = lock.read().await.unwrap();
                        let now = readers.fetch_add(1, Ordering::SeqCst) + 1;
                        most_readers.fetch_max(now, Ordering::SeqCst);
                        assert_eq!(writers.load(Ordering::SeqCst), 0);
                        etcd.get("pause").await.unwrap();
                        assert_eq!(writers.load(Ordering::SeqCst), 0);
                        readers.fetch_sub(1, Ordering::SeqCst);
                        guard.unlock().await.unwrap();
                    }
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(
        most_readers.load(Ordering::SeqCst) > 1,
        "readers never shared the lock"
    );
    assert_eq!(key_count(&etcd, "l/").await, 0);
}

#[tokio::test]
async fn waiting_request_watches_one_key() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let member = cluster.member(0);
    let watchers = async || member.metric("etcd_debugging_mvcc_watcher_total").await;
    let before = watchers().await.unwrap();
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let writer = a.rw_lock("l").write().await.unwrap();
    let mut reading = Vec::new();
    for _ in 0..3 {
        reading.push(spawn_in_queue(&etcd, "l/", b.rw_lock("l").read()).await);
    }
    let writing = spawn_in_queue(&etcd, "l/", b.rw_lock("l").write()).await;
    until_async("all requests watch", async || {
        watchers().await == Some(before + 4.0)
    })
    .await;
    let events_sent = async || member.metric("etcd_debugging_mvcc_events_total").await;
    let before = events_sent().await.unwrap();
    writer.unlock().await.unwrap();
    let mut readers = Vec::new();
    for reading in reading {
        readers.push(
            timeout(TEST_TIMEOUT, reading)
                .await
                .unwrap()
                .unwrap()
                .unwrap(),
        );
    }
    // The second writer watches the newest reader only.
    assert_eq!(events_sent().await, Some(before + 3.0));
    drop(readers);
    drop(timeout(TEST_TIMEOUT, writing).await.unwrap().unwrap());
}

#[tokio::test]
async fn cancelled_requests_leave_no_key() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let guard = a.rw_lock("l").write().await.unwrap();
    let lock = b.rw_lock("l");
    for step in 0..15 {
        let time = Duration::from_millis(step);
        let (reading, writing) =
            tokio::join!(timeout(time, lock.read()), timeout(time, lock.write()));
        assert!(reading.is_err() && writing.is_err());
    }
    let late = lock.read_within(SECOND / 20).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    let late = lock.write_within(SECOND / 20).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    until_key_count(&etcd, "l/", 1).await;
    drop(guard);
    until_key_count(&etcd, "l/", 0).await;
    lock.write_within(TEST_TIMEOUT)
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    assert_eq!(key_count(&etcd, "l/").await, 0);
}

#[tokio::test]
async fn other_keys_under_the_name_are_reported() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let lock = session.rw_lock("l");
    etcd.put("l/data", "").await.unwrap();
    let blocked = [
        lock.write().await.unwrap_err(),
        lock.try_write().await.unwrap_err(),
    ];
    for error in blocked {
        assert_eq!(error.kind(), ErrorKind::LockBlocked);
        assert!(error.to_string().contains("l/data"), "{error}");
    }
    // A reader waits only for writers.
    lock.read().await.unwrap().unlock().await.unwrap();
    etcd.delete("l/data").await.unwrap();
    let mutex = session.mutex("l").lock().await.unwrap();
    let blocked = lock.write().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    mutex.unlock().await.unwrap();
    let reader = lock.read().await.unwrap();
    let blocked = session.mutex("l").lock().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    reader.unlock().await.unwrap();
    assert_eq!(key_names(&etcd, "l/").await, Vec::<String>::new());
    for name in ["", "/"] {
        let refused = session.rw_lock(name).read().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let refused = etcd.rw_lock(name).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
}

// With two threads, the holder and the waiter do not delay each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_reader_is_cancelled_before_writer() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let reader = etcd.session(2 * SECOND).await.unwrap();
    let other = session(&direct).await;
    let lock = reader.rw_lock("l");
    let (signal_held, held) = tokio::sync::oneshot::channel();
    let work = tokio::spawn(async move {
        let read_forever = |_| {
            signal_held.send(()).expect("the test waits for the signal");
            std::future::pending::<()>()
        };
        let cancelled = lock.read_scope(read_forever).await;
        (cancelled.unwrap_err().kind(), Instant::now())
    });
    held.await.unwrap();
    cluster.member(0).client_link().set(Fault::Freeze);
    let writer = other.rw_lock("l").write().await.unwrap();
    let acquired = Instant::now();
    let (kind, cancelled) = timeout(TEST_TIMEOUT, work).await.unwrap().unwrap();
    assert_eq!(kind, ErrorKind::LockLost);
    assert!(
        cancelled < acquired,
        "cancelled too late by {:?}",
        cancelled - acquired
    );
    cluster.heal();
    writer.unlock().await.unwrap();
}

#[tokio::test]
async fn write_under_lost_lock_is_not_applied() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let old = a.rw_lock("l").write().await.unwrap();
    assert!(
        old.txn()
            .then([put("work", "old")])
            .await
            .unwrap()
            .succeeded
    );
    etcd.delete(old.key()).await.unwrap();
    let reader = b.rw_lock("l").read().await.unwrap();
    assert!(reader.token() > old.token());
    let write = old.txn().then([put("work", "stale")]).await.unwrap();
    assert!(!write.succeeded);
    assert!(reader.txn().then([get("work")]).await.unwrap().succeeded);
    let lost = old.unlock().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LockLost);
    assert!(reader.is_certain());
}

#[tokio::test]
async fn waiting_requests_continue_with_new_lease() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let holder = session(&etcd).await;
    let held = holder.rw_lock("l").write().await.unwrap();
    let lock = etcd.rw_lock("l").ttl(2 * SECOND).await.unwrap();
    let reading = spawn_in_queue(&etcd, "l/read/", lock.read()).await;
    let writing = spawn_in_queue(&etcd, "l/write/", lock.write()).await;
    let waiting = etcd.get("l/read/").prefix().await.unwrap();
    let lease = waiting.first().unwrap().lease;
    etcd.revoke(lease).await.unwrap();
    until_async("both requests wait with the new lease", async || {
        let waiting = etcd.get("l/").prefix().await.unwrap();
        waiting.count == 3 && waiting.kvs.iter().all(|kv| kv.lease != lease)
    })
    .await;
    held.unlock().await.unwrap();
    // Both were requested again at the same time, so either one can be first.
    let reading = tokio::spawn(async { drop(reading.await.unwrap().unwrap()) });
    drop(
        timeout(TEST_TIMEOUT, writing)
            .await
            .unwrap()
            .unwrap()
            .unwrap(),
    );
    timeout(TEST_TIMEOUT, reading).await.unwrap().unwrap();
}

#[tokio::test]
async fn shutdown_ends_readers_before_next_writer() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    let (first, second) = (session(&etcd).await, session(&other).await);
    let reader = first.rw_lock("l").read().await.unwrap();
    let stopped = Arc::<AtomicUsize>::default();
    let signal = stopped.clone();
    let reading = tokio::spawn(async move {
        let loss = reader.lost().await;
        tokio::time::sleep(SECOND / 5).await;
        signal.store(1, Ordering::SeqCst);
        drop(reader);
        loss
    });
    let lock = second.rw_lock("l");
    let writing = async move {
        let writer = lock.write().await.unwrap();
        assert_eq!(
            stopped.load(Ordering::SeqCst),
            1,
            "the reader had not stopped"
        );
        writer.unlock().await.unwrap();
    };
    let writing = spawn_in_queue(&other, "l/", writing).await;
    etcd.shutdown().await;
    assert_eq!(
        reading.await.unwrap(),
        OwnershipLost::Session(LeaseLost::Shutdown)
    );
    timeout(TEST_TIMEOUT, writing).await.unwrap().unwrap();
    assert_eq!(key_count(&other, "l/").await, 0);
}

#[actix::test]
async fn actors_hold_the_lock_as_readers_and_writer() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let lock = session.rw_lock("l");
    let (first_events, first) = record_messages::<LockEvent>();
    let (second_events, second) = record_messages::<LockEvent>();
    let (writer_events, writer) = record_messages::<LockEvent>();
    let first = lock.read().deliver_to(first);
    let second = lock.read().deliver_to(second);
    until("both readers have the lock", || {
        let acquired = |events: &Vec<LockEvent>| matches!(events[..], [LockEvent::Acquired(_)]);
        acquired(&first_events.lock().unwrap()) && acquired(&second_events.lock().unwrap())
    })
    .await;
    let writer = lock.write().deliver_to(writer);
    until_key_count(&etcd, "l/", 3).await;
    first.release().await;
    assert!(writer_events.lock().unwrap().is_empty());
    drop(second);
    until("the writer has the lock", || {
        matches!(writer_events.lock().unwrap()[..], [LockEvent::Acquired(_)])
    })
    .await;
    writer.release().await;
    until("the writer has released the lock", || {
        let events = writer_events.lock().unwrap();
        matches!(events[..], [LockEvent::Acquired(_), LockEvent::Released])
    })
    .await;
    assert_eq!(key_count(&etcd, "l/").await, 0);
}
