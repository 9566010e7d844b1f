//! Measures how long a lock and a leadership take: `cargo bench --bench locks`.
//!
//! | part | measures | target |
//! |---|---|---|
//! | `uncontended` | `lock` and `unlock` without another session | none |
//! | `mutex` | from `unlock` by the holder until the waiter has the lock | median ≤ 5 ms |
//! | `election` | from `resign` by the leader until the next candidate leads | median ≤ 5 ms |
//! | `observer` | from `resign` by the leader until an observer receives the next leader | none |
//!
//! Three members on this machine, so the figures include the time that a disk needs for one write. `ROUNDS` changes the
//! number of measurements.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench panics on failure"
)]

use std::{
    env,
    time::{Duration, Instant},
};

use actix_etcd::{
    Client,
    recipes::{election::LeaderEvent, session::Session},
};
use testbed::Cluster;

const TARGET: Duration = Duration::from_millis(5);
const TTL: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let rounds = env::var("ROUNDS").map_or(200, |rounds| rounds.parse().expect("a number"));
    let cluster = Cluster::start(3).await;
    // Bypasses the proxies, which run in this process.
    let etcd = Client::connect(cluster.direct_endpoints())
        .await
        .expect("connect to a healthy cluster");
    let sessions = [open_session(&etcd).await, open_session(&etcd).await];
    println!("| part | median | 90 % |\n|---|---|---|");
    let uncontended = uncontended(&sessions[0], rounds).await;
    report("lock and unlock, uncontended", uncontended);
    let mutex = report("handover of a lock", lock_handover(&sessions, rounds).await);
    let (election, observer) = election_handover(&etcd, &sessions, rounds).await;
    let election = report("handover of a leadership", election);
    report("the same, seen by an observer", observer);
    assert!(
        mutex <= TARGET && election <= TARGET,
        "the target of {TARGET:?} was missed"
    );
}

async fn open_session(etcd: &Client) -> Session {
    etcd.session(TTL).await.expect("open a session")
}

/// Prints the figures of one part and returns the median.
fn report(part: &str, mut times: Vec<Duration>) -> Duration {
    times.sort();
    let median = times[times.len() / 2];
    println!(
        "| {part} | {median:.1?} | {:.1?} |",
        times[times.len() * 9 / 10]
    );
    median
}

async fn uncontended(session: &Session, rounds: usize) -> Vec<Duration> {
    let mutex = session.mutex("uncontended");
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let guard = mutex.lock().await.expect("lock");
        guard.unlock().await.expect("unlock");
        times.push(start.elapsed());
    }
    times
}

/// Waits until two keys exist under the prefix, and a moment for the second session to watch the first one's key.
async fn until_waiting(session: &Session, prefix: &str) {
    let etcd = session.client();
    while etcd.get(prefix).prefix().await.expect("read").count < 2 {}
    tokio::time::sleep(Duration::from_millis(30)).await;
}

async fn lock_handover(sessions: &[Session; 2], rounds: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut held = sessions[0].mutex("l").lock().await.expect("lock");
    for round in 0..rounds {
        let next = sessions[(round + 1) % 2].mutex("l");
        let waiting = tokio::spawn(async move {
            let guard = next.lock().await.expect("lock");
            (guard, Instant::now())
        });
        until_waiting(&sessions[0], "l/").await;
        let start = Instant::now();
        held.unlock().await.expect("unlock");
        let (guard, acquired) = waiting.await.expect("the waiter does not panic");
        times.push(acquired.saturating_duration_since(start));
        held = guard;
    }
    times
}

/// Returns the times until the next candidate leads, and until an observer receives that.
async fn election_handover(
    etcd: &Client,
    sessions: &[Session; 2],
    rounds: usize,
) -> (Vec<Duration>, Vec<Duration>) {
    let (mut times, mut observed) = (Vec::new(), Vec::new());
    let mut leaders = etcd.leaders("e");
    let first = sessions[0].election("e").campaign("v");
    let mut leadership = first.await.expect("lead");
    for round in 0..rounds {
        let next = sessions[(round + 1) % 2].election("e");
        let waiting = tokio::spawn(async move {
            let leadership = next.campaign("v").await.expect("lead");
            (leadership, Instant::now())
        });
        until_waiting(&sessions[0], "e/").await;
        let previous = leadership.token();
        let start = Instant::now();
        leadership.resign().await.expect("resign");
        loop {
            match leaders.next().await.expect("an event") {
                LeaderEvent::Leads(leader) if leader.token > previous => break,
                LeaderEvent::Ended(error) => panic!("{error}"),
                _ => {}
            }
        }
        observed.push(start.elapsed());
        let (next, elected) = waiting.await.expect("the candidate does not panic");
        times.push(elected.saturating_duration_since(start));
        leadership = next;
    }
    (times, observed)
}
