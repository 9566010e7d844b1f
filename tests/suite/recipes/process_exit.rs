//! A process that returns from `main` without a shutdown: the drop of its last handle waits until everything is released.

use std::{
    env,
    io::{BufRead, BufReader, Read, stdin},
    process::{Child, ChildStderr, exit},
    sync::Mutex,
    time::{Duration, Instant},
};

use actix::{Actor, Context};
use actix_etcd::{Client, recipes::mutex::LockEvent};
use testbed::{Cluster, Fault, TcpProxy};

use crate::support::{
    connected_cluster::StartWithClient,
    message_recorder::record_messages,
    process_isolation::{ChildTest, child_test},
    wait::{TEST_TIMEOUT, until, until_async},
};

const ENDPOINT: &str = "EXITING_PROCESS";
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(600);
/// Longest time that a drop may block: the default `drop_grace`, and room for a busy machine.
const MAX_DROP: Duration = Duration::from_secs(10);

/// Printed by the child process when it has opened all handles.
const READY: &str = "ready";

/// A child process. Dropping this value kills it.
struct ExitingProcess {
    process: Child,
    stderr: BufReader<ChildStderr>,
}

impl ExitingProcess {
    /// Starts a child process that runs `test`, which must begin with a call of [`endpoint`]. Blocks until the child calls
    /// [`parent_finishes`].
    fn start(test: ChildTest, endpoint: &str) -> Self {
        let mut process = test.env(ENDPOINT, endpoint).spawn();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        while line.trim_end() != READY {
            line.clear();
            let read = stderr.read_line(&mut line).unwrap();
            assert!(read > 0, "the child process ended early");
            print!("{line}");
        }
        Self { process, stderr }
    }

    /// Makes the child return from its test, and waits until it has ended without an error.
    async fn finish(&mut self) {
        drop(self.process.stdin.take());
        let process = Mutex::new(&mut self.process);
        until("the process has ended", || {
            process.lock().unwrap().try_wait().unwrap().is_some()
        })
        .await;
        let mut output = String::new();
        self.stderr.read_to_string(&mut output).unwrap();
        println!("{output}");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for ExitingProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the endpoint that the child process uses, or `None` in the parent process.
fn endpoint() -> Option<String> {
    env::var(ENDPOINT).ok()
}

/// Waits until the parent process calls [`ExitingProcess::finish`].
async fn parent_finishes() {
    eprintln!("{READY}");
    let read = || drop(stdin().read_to_end(&mut Vec::new()));
    tokio::task::spawn_blocking(read).await.unwrap();
}

/// Ends the process, unless the drop of all handles took too long.
fn exit_after_drop(began: Instant) -> ! {
    let elapsed = began.elapsed();
    eprintln!("dropped within {elapsed:?}");
    exit(i32::from(elapsed > MAX_DROP));
}

async fn key_count(etcd: &Client) -> i64 {
    etcd.get("").prefix().await.unwrap().count
}

async fn assert_nothing_is_left(etcd: &Client) {
    let left = etcd.get("").prefix().keys_only().await.unwrap();
    assert!(left.kvs.is_empty(), "{left:?}");
    let leases = etcd.leases().await.unwrap().leases;
    assert!(leases.is_empty(), "{leases:?}");
}

#[test]
fn returning_main_releases_all_locks_and_leases() {
    if let Some(endpoint) = endpoint() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let began = runtime.block_on(async {
            let etcd = Client::connect([endpoint]).await.unwrap();
            let session = etcd.session(LONG).await.unwrap();
            let _lock = session.mutex("lock").lock().await.unwrap();
            let _leader = session.election("election").campaign("me").await.unwrap();
            let _instance = etcd.register("service", "here").ttl(LONG).await.unwrap();
            let _instances = etcd.discover("service").await.unwrap();
            let lease = etcd.lease(LONG).revoke_on_drop().await.unwrap();
            etcd.put("leased", "").lease(&lease).await.unwrap();
            parent_finishes().await;
            Instant::now()
        });
        exit_after_drop(began);
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (cluster, etcd) = Cluster::start_with_client(1).await;
        let mut process = ExitingProcess::start(child_test!(), &cluster.endpoints()[0]);
        assert_eq!(key_count(&etcd).await, 4);
        process.finish().await;
        assert_nothing_is_left(&etcd).await;
    });
}

struct Idle;

impl Actor for Idle {
    type Context = Context<Self>;
}

#[test]
fn returning_main_of_actix_system_releases_all() {
    if let Some(endpoint) = endpoint() {
        let system = actix_rt::System::new();
        let began = system.block_on(async {
            let etcd = Client::connect([endpoint]).await.unwrap();
            let singleton = etcd.singleton("only").ttl(LONG).start(|_| Idle).unwrap();
            let _actor = singleton.running().await.unwrap();
            let session = etcd.session(LONG).await.unwrap();
            let mutex = session.mutex("lock");
            let (_, recipient) = record_messages::<LockEvent>();
            let _claim = mutex.lock().deliver_to(recipient);
            let (_, recipient) = record_messages();
            let _subscription = etcd.leaders("only").deliver_to(recipient);
            parent_finishes().await;
            Instant::now()
        });
        drop(system);
        exit_after_drop(began);
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (cluster, etcd) = Cluster::start_with_client(1).await;
        let mut process = ExitingProcess::start(child_test!(), &cluster.endpoints()[0]);
        until_async("both keys are put", async || key_count(&etcd).await == 2).await;
        process.finish().await;
        assert_nothing_is_left(&etcd).await;
    });
}

#[test]
fn returning_main_ends_without_etcd() {
    if let Some(endpoint) = endpoint() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let began = runtime.block_on(async {
            let etcd = Client::connect([endpoint]).await.unwrap();
            let session = etcd.session(LONG).await.unwrap();
            let _lock = session.mutex("lock").lock().await.unwrap();
            parent_finishes().await;
            Instant::now()
        });
        exit_after_drop(began);
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (cluster, etcd) = Cluster::start_with_client(1).await;
        let direct = cluster.direct_endpoints();
        let (_, port) = direct[0].rsplit_once(':').unwrap();
        let proxy = TcpProxy::to_port(port.parse().unwrap());
        let endpoint = format!("http://{}", proxy.address());
        let mut process = ExitingProcess::start(child_test!(), &endpoint);
        assert_eq!(key_count(&etcd).await, 1);
        proxy.link().set(Fault::Freeze);
        process.finish().await;
        assert_eq!(key_count(&etcd).await, 1);
    });
}

/// Without leases and locks there is nothing to wait for.
#[tokio::test(flavor = "multi_thread")]
async fn drop_without_leases_does_not_block() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::builder(cluster.endpoints()).drop_grace(TEST_TIMEOUT);
    let etcd = etcd.connect().await.unwrap();
    let unmarked = etcd.lease(LONG).keep_alive().await.unwrap();
    let session = etcd.session(LONG).await.unwrap();
    session.close().await.unwrap();
    cluster.member(0).client_link().set(Fault::Freeze);
    let put = tokio::spawn(etcd.put("k", "v").timeout(TEST_TIMEOUT).into_future());
    let began = Instant::now();
    drop((etcd, unmarked));
    assert!(began.elapsed() < MAX_DROP, "{:?}", began.elapsed());
    assert!(put.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn drop_without_grace_does_not_block() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::builder(cluster.endpoints()).drop_grace(Duration::ZERO);
    let etcd = etcd.connect().await.unwrap();
    let session = etcd.session(LONG).await.unwrap();
    cluster.member(0).client_link().set(Fault::Freeze);
    let began = Instant::now();
    drop((etcd, session));
    assert!(began.elapsed() < Duration::from_secs(1));
}
