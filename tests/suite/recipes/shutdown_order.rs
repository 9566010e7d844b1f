//! The order of a client's shutdown: work under locks and leaderships ends before another session can get them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{
    Actor, ActorContext, AsyncContext, Context, Handler, Recipient, ResponseFuture, Running,
};
use actix_etcd::{
    Client, ErrorKind,
    lease::LeaseLost,
    recipes::{
        mutex::{LockEvent, Ownership, OwnershipLost},
        singleton::{Singleton, SingletonState},
    },
};
use testbed::Cluster;
use tokio::time::{sleep, timeout};

use crate::support::{
    exclusion_counter::{SharedRecord, WorkPeriod, increment_counter, read_counter},
    lock_waiters::until_key_count,
    wait::{TEST_TIMEOUT, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);
const CLIENT_STOPS: OwnershipLost = OwnershipLost::Session(LeaseLost::Shutdown);

/// Starts a cluster and two clients.
async fn cluster_and_clients() -> (Cluster, Client, Client) {
    let cluster = Cluster::start(1).await;
    let a = Client::connect(cluster.endpoints()).await.unwrap();
    let b = Client::connect(cluster.endpoints()).await.unwrap();
    (cluster, a, b)
}

/// Waits until this many sessions hold the lock or wait for it.
async fn until_queued(etcd: &Client, count: i64) {
    until_async("all sessions are in the queue", async || {
        etcd.get("only/").prefix().await.unwrap().count == count
    })
    .await;
}

/// Shuts the owner of the lock down while node 1 waits for the lock. Returns when node 1 has had it.
async fn shut_down_owner(owner: Client, next: &Client, record: &SharedRecord) {
    let session = next.session(LONG).await.unwrap();
    let mutex = session.mutex("only");
    let lock = async {
        let guard = mutex.lock().await.unwrap();
        (WorkPeriod::start(1, record), guard)
    };
    let (locked, ()) = tokio::join!(lock, async {
        until_queued(next, 2).await;
        owner.shutdown().await;
    });
    drop(locked);
}

/// Waits until all work has ended. Fails if two nodes worked at the same time.
async fn check(record: &SharedRecord, etcd: &Client) {
    until("all work has ended", || {
        record.lock().unwrap().working_node().is_none()
    })
    .await;
    let counter = read_counter(etcd).await.unwrap();
    record.lock().unwrap().check(counter);
}

/// Works until it is dropped, and takes a while to stop.
struct SlowActor {
    _work_period: WorkPeriod,
    stop_delay: Option<Duration>,
}

impl Actor for SlowActor {
    type Context = Context<Self>;

    fn stopping(&mut self, ctx: &mut Self::Context) -> Running {
        let Some(delay) = self.stop_delay.take() else {
            return Running::Stop;
        };
        ctx.run_later(delay, |_, ctx| ctx.stop());
        Running::Continue
    }
}

fn start_node(
    etcd: &Client,
    ttl: Duration,
    stop_delay: Duration,
    node: usize,
    record: &SharedRecord,
) -> Singleton<SlowActor> {
    let record = record.clone();
    let make = move |_| SlowActor {
        _work_period: WorkPeriod::start(node, &record),
        stop_delay: Some(stop_delay),
    };
    etcd.singleton("only").ttl(ttl).start(make).unwrap()
}

#[actix::test]
async fn shutdown_waits_for_actor_of_singleton() {
    let (_cluster, first, second) = cluster_and_clients().await;
    let record = SharedRecord::default();
    // The actor has a third of the TTL to stop, which is longer than the default `shutdown_grace`.
    let a = start_node(&first, 6 * SECOND, SECOND, 0, &record);
    a.running().await.unwrap();
    let b = start_node(&second, LONG, SECOND, 1, &record);
    until_queued(&second, 2).await;
    let lease = second.leader("only").await.unwrap().unwrap().lease;
    first.shutdown().await;
    assert!(matches!(a.state(), SingletonState::Stopped), "{a:?}");
    assert!(
        second
            .leases()
            .await
            .unwrap()
            .leases
            .iter()
            .all(|id| *id != lease)
    );
    timeout(TEST_TIMEOUT, b.running()).await.unwrap().unwrap();
    b.stop().await;
    check(&record, &second).await;
}

/// A lease whose holder has not stopped is left to expire.
#[actix::test]
async fn slow_singleton_outlasts_shutdown_but_not_its_lease() {
    let cluster = Cluster::start(1).await;
    let first = Client::builder(cluster.endpoints()).shutdown_grace(SECOND / 10);
    let first = first.connect().await.unwrap();
    let second = Client::connect(cluster.endpoints()).await.unwrap();
    let record = SharedRecord::default();
    // Has one second to stop, and would need longer.
    let a = start_node(&first, 3 * SECOND, LONG, 0, &record);
    a.running().await.unwrap();
    let b = start_node(&second, LONG, Duration::ZERO, 1, &record);
    until_queued(&second, 2).await;
    let lease = second.leader("only").await.unwrap().unwrap().lease;
    first.shutdown().await;
    let kept = second.leases().await.unwrap().leases;
    assert!(kept.contains(&lease), "the lease was revoked: {kept:?}");
    timeout(TEST_TIMEOUT, b.running()).await.unwrap().unwrap();
    b.stop().await;
    check(&record, &second).await;
}

/// Two nodes work under the lock in turns. Node 0 is in the middle of its work at its shutdown.
#[actix::test]
async fn shutdown_ends_scope_before_next_owner() {
    let (_cluster, first, second) = cluster_and_clients().await;
    let record = SharedRecord::default();
    let work = |node, etcd: &Client| {
        let (etcd, record) = (etcd.clone(), record.clone());
        async move |held: Ownership| {
            let _work_period = WorkPeriod::start(node, &record);
            while increment_counter(&etcd, &held, &record).await && node == 0 {}
        }
    };
    let session = first.session(LONG).await.unwrap();
    let first_work = work(0, &first);
    let mutex = session.mutex("only");
    let first_scope = tokio::spawn(async move { mutex.scope(first_work).await });
    until("node 0 works", || {
        record.lock().unwrap().working_node().is_some()
    })
    .await;
    let waiting = second.session(LONG).await.unwrap();
    let waiting = waiting.mutex("only");
    let second_scope = waiting.scope(work(1, &second));
    let (done, ()) = tokio::join!(second_scope, async {
        until_queued(&second, 2).await;
        first.shutdown().await;
    });
    done.unwrap();
    let error = first_scope.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionLost, "{error}");
    check(&record, &second).await;
}

#[actix::test]
async fn shutdown_notifies_guard_before_releasing_lock() {
    let (_cluster, first, second) = cluster_and_clients().await;
    let record = SharedRecord::default();
    let session = first.session(LONG).await.unwrap();
    let guard = session.mutex("only").lock().await.unwrap();
    let work_period = WorkPeriod::start(0, &record);
    let work = tokio::spawn(async move {
        let loss = guard.lost().await;
        // Requests still work.
        let unlocking = guard.txn().await;
        sleep(SECOND / 3).await;
        drop(work_period);
        drop(guard);
        (loss, unlocking)
    });
    shut_down_owner(first, &second, &record).await;
    let (loss, unlocking) = work.await.unwrap();
    assert_eq!(loss, CLIENT_STOPS);
    assert!(unlocking.unwrap().succeeded);
    check(&record, &second).await;
}

#[actix::test]
async fn guard_that_is_not_dropped_keeps_its_lease() {
    let cluster = Cluster::start(1).await;
    let first = Client::builder(cluster.endpoints()).shutdown_grace(SECOND / 10);
    let first = first.connect().await.unwrap();
    let second = Client::connect(cluster.endpoints()).await.unwrap();
    let (held, other) = (
        first.session(2 * SECOND).await.unwrap(),
        first.session(LONG).await.unwrap(),
    );
    let lease = held.lease().unwrap();
    let _guard = held.mutex("only").lock().await.unwrap();
    drop(other.mutex("other").lock().await.unwrap());
    first.shutdown().await;
    // Only the lease of the guard is left, and expires.
    assert_eq!(second.leases().await.unwrap().leases, [lease]);
    let session = second.session(LONG).await.unwrap();
    let locked = session.mutex("only").lock_within(TEST_TIMEOUT).await;
    locked.unwrap().unlock().await.unwrap();
}

/// Works under a lock until it has handled the loss, which takes a while.
struct SlowOwner {
    record: SharedRecord,
    work_period: Option<WorkPeriod>,
    losses: Arc<Mutex<Vec<OwnershipLost>>>,
}

impl Actor for SlowOwner {
    type Context = Context<Self>;
}

impl Handler<LockEvent> for SlowOwner {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, event: LockEvent, _: &mut Self::Context) -> Self::Result {
        match event {
            LockEvent::Acquired(_) => {
                self.work_period = Some(WorkPeriod::start(0, &self.record));
                Box::pin(async {})
            }
            LockEvent::Lost(loss) => {
                self.losses.lock().unwrap().push(loss);
                let work_period = self.work_period.take();
                Box::pin(async move {
                    sleep(SECOND / 3).await;
                    drop(work_period);
                })
            }
            other => panic!("{other:?}"),
        }
    }
}

#[actix::test]
async fn claim_is_released_after_actor_handled_its_loss() {
    let (_cluster, first, second) = cluster_and_clients().await;
    let record = SharedRecord::default();
    let losses = Arc::default();
    let session = first.session(LONG).await.unwrap();
    let owner: Recipient<LockEvent> = SlowOwner {
        record: record.clone(),
        work_period: None,
        losses: Arc::clone(&losses),
    }
    .start()
    .recipient();
    let _claim = session.mutex("only").lock().deliver_to(owner);
    until("the actor works", || {
        record.lock().unwrap().working_node().is_some()
    })
    .await;
    shut_down_owner(first, &second, &record).await;
    assert_eq!(*losses.lock().unwrap(), [CLIENT_STOPS]);
    check(&record, &second).await;
}

/// Sessions, locks and registrations that are half open leave nothing behind.
#[actix::test]
async fn shutdown_ends_half_open_handles() {
    let (_cluster, first, second) = cluster_and_clients().await;
    let holding = second.session(LONG).await.unwrap();
    let guard = holding.mutex("only").lock().await.unwrap();
    let session = first.session(LONG).await.unwrap();
    let waiting = tokio::spawn(session.mutex("only").lock().into_future());
    let campaigning = tokio::spawn(session.election("only").campaign("me").into_future());
    let singleton = first.singleton("only").start(|_| Idle).unwrap();
    let shared = second.session(LONG).await.unwrap();
    let writer = shared.rw_lock("shared").write().await.unwrap();
    let permit = shared.semaphore("permits", 1).acquire().await.unwrap();
    let reading = tokio::spawn(session.rw_lock("shared").read().into_future());
    let acquiring = tokio::spawn(session.semaphore("permits", 1).acquire().into_future());
    let entering = tokio::spawn(session.double_barrier("all", 2).enter().into_future());
    until_queued(&second, 3).await;
    for (prefix, count) in [("shared/", 2), ("permits/", 2), ("all/waiters/", 1)] {
        until_key_count(&second, prefix, count).await;
    }
    let mut opening = Vec::new();
    for n in 0..20 {
        let etcd = first.clone();
        opening.push(tokio::spawn(async move {
            let (session, registration) = tokio::join!(
                etcd.session(LONG).into_future(),
                etcd.register("service", format!("instance-{n}")).ttl(LONG)
            );
            drop((session.map(drop), registration.map(drop)));
        }));
        // The later ones begin during the shutdown.
        if n % 4 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let shutdown = timeout(TEST_TIMEOUT, first.shutdown());
    shutdown.await.expect("the shutdown hangs");
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionLost, "{error}");
    let error = campaigning.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionLost, "{error}");
    for error in [
        reading.await.unwrap().unwrap_err(),
        acquiring.await.unwrap().unwrap_err(),
        entering.await.unwrap().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::SessionLost, "{error}");
    }
    writer.unlock().await.unwrap();
    permit.release().await.unwrap();
    shared.close().await.unwrap();
    singleton.not_running().await;
    assert!(singleton.running().await.is_err());
    for task in opening {
        let task = timeout(TEST_TIMEOUT, task);
        task.await.expect("a request hangs").unwrap();
    }
    drop(session);
    let left = second.get("").prefix().keys_only().await.unwrap();
    let left: Vec<_> = left.kvs.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!(left, [guard.key().clone()]);
    let leases = second.leases().await.unwrap().leases;
    assert_eq!(leases, [holding.lease().unwrap()]);
    guard.unlock().await.unwrap();
}

struct Idle;

impl Actor for Idle {
    type Context = Context<Self>;
}
