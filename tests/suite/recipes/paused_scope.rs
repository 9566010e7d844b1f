//! Work under a lock in a process that is paused for longer than its lease lasts.

use std::{
    env,
    future::poll_fn,
    io::{BufRead, BufReader},
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use actix_etcd::{Client, ErrorKind, recipes::mutex::Ownership};
use testbed::Cluster;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use crate::support::{
    process_isolation::{ChildTest, child_test},
    wait::hold,
};

const TTL: Duration = Duration::from_secs(2);
/// Much longer than the TTL.
const PAUSE: Duration = Duration::from_secs(6);
const ENDPOINTS: &str = "PAUSED_SCOPE";
/// Number of locks. Their work keeps the runtime busy: it looks at its timers only after many polls of tasks.
const SCOPES: usize = 16;
/// Each thread may complete the poll in which it was paused.
const MAX_LATE_POLLS: u32 = 2;

/// Polls itself as often as the runtime allows, and counts the polls that began without time on the lease.
async fn count_late_polls(held: Ownership, late_polls: Arc<AtomicU32>) {
    eprintln!("held");
    poll_fn(|cx| {
        let is_late = held.remaining().is_zero();
        late_polls.fetch_add(u32::from(is_late), Ordering::SeqCst);
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    })
    .await;
}

/// Returns `false` in the parent process. In the child, runs work under a lock until the lock is lost.
fn run_as_child(runtime: &Runtime) -> bool {
    let Ok(endpoints) = env::var(ENDPOINTS) else {
        return false;
    };
    runtime.block_on(async {
        let etcd = Client::connect(endpoints.split(',')).await.unwrap();
        let session = etcd.session(TTL).await.unwrap();
        let late_polls = Arc::<AtomicU32>::default();
        let mut scopes = JoinSet::new();
        for number in 0..SCOPES {
            let (mutex, late_polls) = (session.mutex(format!("l{number}")), late_polls.clone());
            let work = |held| count_late_polls(held, late_polls);
            scopes.spawn(async move { mutex.scope(work).await.unwrap_err().kind() });
        }
        for lost in scopes.join_all().await {
            let is_expected = matches!(lost, ErrorKind::LockLost | ErrorKind::SessionLost);
            assert!(is_expected, "{lost:?}");
        }
        eprintln!("late polls: {}", late_polls.load(Ordering::SeqCst));
    });
    true
}

fn signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(sent.success());
}

/// Returns the rest of the first line that begins with `start`.
fn read_line(lines: &mut impl Iterator<Item = String>, start: &str) -> String {
    let found = lines.find_map(|line| line.strip_prefix(start).map(str::to_owned));
    found.expect("the child process reports")
}

async fn pause_and_check(test: ChildTest) {
    let cluster = Cluster::start(1).await;
    let mut child = test.env(ENDPOINTS, cluster.endpoints().join(",")).spawn();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = stderr.lines().map_while(Result::ok);
    for _ in 0..SCOPES {
        read_line(&mut lines, "held");
    }
    signal(&child, "-STOP");
    hold(PAUSE).await;
    signal(&child, "-CONT");
    let late_polls: u32 = read_line(&mut lines, "late polls: ").parse().unwrap();
    println!("{late_polls} late polls");
    assert!(late_polls <= MAX_LATE_POLLS, "{late_polls} late polls");
    assert!(child.wait().unwrap().success());
}

#[test]
fn scope_is_not_polled_after_pause() {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    if !run_as_child(&runtime) {
        runtime.block_on(pause_and_check(child_test!()));
    }
}

#[test]
fn single_threaded_scope_is_not_polled_after_pause() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    if !run_as_child(&runtime) {
        runtime.block_on(pause_and_check(child_test!()));
    }
}
