//! Connections that the runtime of their callers drives: which runtimes get them, and what happens when such a runtime
//! is blocked, idle or gone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use actix_etcd::{Client, WatchEvent, test_faults::connections_driven_by_callers};
use testbed::{Cluster, Fault};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
    time::timeout,
};

use crate::support::{quiet_window::ready_members, wait::until};

/// An application with one thread, apart from the thread of the test.
fn application() -> Runtime {
    // One worker instead of `current_thread`: its tasks run without `block_on`.
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// Calls made until they are stopped. Every call must succeed.
struct Calls {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Calls {
    fn start(runtime: &Runtime, etcd: &Client) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let caller = |number| {
            let (etcd, stop) = (etcd.clone(), stop.clone());
            runtime.spawn(async move {
                let key = format!("calls/{number}");
                while !stop.load(Ordering::Relaxed) {
                    etcd.get(key.as_str()).serializable().await.unwrap();
                }
            })
        };
        let tasks = (0..12).map(caller).collect();
        Self { stop, tasks }
    }

    async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

async fn connect(cluster: &Cluster) -> Client {
    Client::connect(cluster.endpoints()).await.unwrap()
}

/// Makes enough calls to get the connections, if the runtime may have them.
async fn many_reads(etcd: Client) {
    for _ in 0..2000 {
        etcd.get("key").serializable().await.unwrap();
    }
}

/// Makes calls on a runtime until it drives all connections.
async fn move_connections(etcd: &Client, runtime: &Runtime, members: usize) -> Calls {
    let calls = Calls::start(runtime, etcd);
    until("the runtime drives all connections", || {
        connections_driven_by_callers(etcd) == members
    })
    .await;
    calls
}

/// Stops the only thread of a runtime until the returned sender is dropped.
async fn block(runtime: &Runtime) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel();
    let (blocked, is_blocked) = tokio::sync::oneshot::channel();
    runtime.spawn(async move {
        blocked.send(()).unwrap();
        let _ = released.recv();
    });
    is_blocked.await.unwrap();
    release
}

#[tokio::test]
async fn busy_runtime_drives_connections_until_idle() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let runtime = application();
    for _ in 0..2 {
        let calls = move_connections(&etcd, &runtime, 3).await;
        calls.finish().await;
        until("the client drives all connections", || {
            connections_driven_by_callers(&etcd) == 0
        })
        .await;
    }
    runtime.shutdown_background();
}

#[tokio::test]
async fn blocked_runtime_does_not_affect_other_callers() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let ttl = Duration::from_secs(2);
    let lease = etcd.lease(ttl).keep_alive().await.unwrap();
    let mut watch = etcd.watch("watched").await.unwrap();
    let runtime = application();
    let calls = move_connections(&etcd, &runtime, 3).await;
    let release = block(&runtime).await;
    for number in 0..100 {
        let put = etcd.put("watched", number.to_string()).await.unwrap();
        let Some(WatchEvent::Events(events)) = watch.next().await else {
            panic!("the watch has ended");
        };
        assert_eq!(events.revision(), put.header.revision);
    }
    assert_eq!(connections_driven_by_callers(&etcd), 0);
    let lost = timeout(ttl * 3 / 2, lease.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    drop(release);
    calls.finish().await;
    runtime.shutdown_background();
}

#[tokio::test]
async fn ended_runtime_costs_no_call() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    for _ in 0..3 {
        let runtime = application();
        let calls = move_connections(&etcd, &runtime, 3).await;
        // Dropping a runtime blocks, which tokio forbids in a task.
        let ended = thread::spawn(move || drop((calls, runtime)));
        while !ended.is_finished() {
            etcd.put("other", "caller").await.unwrap();
        }
        ended.join().unwrap();
        for _ in 0..30 {
            etcd.put("other", "caller").await.unwrap();
        }
        until("the client drives all connections", || {
            connections_driven_by_callers(&etcd) == 0
        })
        .await;
    }
}

#[tokio::test]
async fn second_busy_runtime_moves_connections_to_client() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(&cluster).await;
    let (first, second) = (application(), application());
    let calls = move_connections(&etcd, &first, 1).await;
    let more_calls = Calls::start(&second, &etcd);
    until("the client drives all connections", || {
        connections_driven_by_callers(&etcd) == 0
    })
    .await;
    calls.finish().await;
    more_calls.finish().await;
    first.shutdown_background();
    second.shutdown_background();
}

#[tokio::test]
async fn moved_connections_survive_member_faults() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let runtime = application();
    let calls = move_connections(&etcd, &runtime, 3).await;
    for member in 0..3 {
        cluster.member(member).client_link().reset_now();
        until("the runtime drives all connections", || {
            connections_driven_by_callers(&etcd) == 3
        })
        .await;
    }
    calls.finish().await;
    runtime.shutdown_background();
}

#[tokio::test]
async fn sockets_stay_with_client_if_option_is_off() {
    let cluster = Cluster::start(1).await;
    let builder = Client::builder(cluster.endpoints()).sockets_follow_callers(false);
    let etcd = builder.connect().await.unwrap();
    let runtime = application();
    runtime.spawn(many_reads(etcd.clone())).await.unwrap();
    assert_eq!(connections_driven_by_callers(&etcd), 0);
    runtime.shutdown_background();
}

#[tokio::test]
async fn runtime_without_io_gets_no_connection() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(&cluster).await;
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    runtime.spawn(many_reads(etcd.clone())).await.unwrap();
    assert_eq!(connections_driven_by_callers(&etcd), 0);
    runtime.shutdown_background();
}

/// Calls keep arriving on the connection of the frozen member, so it is still driven by them when the client leaves it.
#[tokio::test]
async fn left_connection_is_closed_while_calls_arrive() {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let runtime = application();
    let calls = move_connections(&etcd, &runtime, 3).await;
    let arriving = etcd.clone();
    let arrivals = runtime.spawn(async move {
        let mut interval = tokio::time::interval(Duration::from_millis(1));
        loop {
            interval.tick().await;
            tokio::spawn(arriving.get("key").serializable().into_future());
        }
    });
    let link = cluster.member(0).client_link().clone();
    link.set(Fault::Freeze);
    until("the member is left", || ready_members(&etcd) == 2).await;
    link.heal();
    until("the member is used again", || ready_members(&etcd) == 3).await;
    until("the old connection is closed", || link.connections() == 1).await;
    arrivals.abort();
    calls.finish().await;
    let tasks = runtime.metrics();
    until("no driver is left", || tasks.num_alive_tasks() == 0).await;
    runtime.shutdown_background();
}
