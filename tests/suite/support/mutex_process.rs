//! A node process that takes turns with others to hold a lock.

use std::{thread, time::Duration};

use actix_etcd::{Client, kv::put, recipes::mutex::Ownership};
use tokio::{runtime::Builder, time::Instant};

use crate::support::{
    lock_observation::ObservedWork,
    node_process::{NodePhase, NodeTask},
};

pub const TTL: Duration = Duration::from_secs(2);
/// How long a node holds the lock. Most pauses are longer, and hit the holder before it gives the lock up.
const TURN: Duration = Duration::from_secs(1);
/// Length of one poll of the work.
const STEP: Duration = Duration::from_micros(100);

/// In a process that [`NodeProcess::start`](super::node_process::NodeProcess::start) has started: runs a node until the
/// parent closes the standard input, then returns `true`. In any other process: returns `false` at once.
pub fn run_as_node() -> bool {
    let Some(node) = NodeTask::of_this_process() else {
        return false;
    };
    // Timers of the two kinds of runtimes are due at different times after a pause.
    let runtime = if std::process::id().is_multiple_of(2) {
        Builder::new_current_thread().enable_all().build()
    } else {
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
    };
    runtime.unwrap().block_on(take_turns(node));
    true
}

async fn take_turns(mut node: NodeTask) {
    let etcd = Client::connect(&node.endpoints).await.unwrap();
    while node.is_in(NodePhase::Work) {
        let Ok(session) = etcd.session(TTL).await else {
            continue;
        };
        let mutex = session.mutex("l");
        while session.lease().is_some() && node.is_in(NodePhase::Work) {
            let work = |held: Ownership| ObservedWork::new(held.clone(), work(held));
            if mutex.scope(work).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        if !node.is_in(NodePhase::Work) {
            node.idle_until_end().await;
        }
    }
    etcd.shutdown().await;
}

/// Always has something to do, so that it is polled as often as its runtime allows.
async fn work(held: Ownership) {
    let _ = held
        .txn()
        .then([put("work", held.token().to_string())])
        .await;
    let end = Instant::now() + TURN;
    while Instant::now() < end {
        thread::sleep(STEP);
        tokio::task::yield_now().await;
    }
}
