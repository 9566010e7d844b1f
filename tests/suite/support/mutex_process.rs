//! A node process that takes turns with others to hold a lock.

use std::{future::poll_fn, task::Poll, thread, time::Duration};

use actix_etcd::{Client, kv::put, recipes::mutex::Ownership};
use tokio::runtime::Builder;

use crate::support::{
    lock_observation::ObservedWork,
    node_process::{NodePhase, NodeTask},
};

pub const TTL: Duration = Duration::from_secs(2);
/// Number of polls of the work, about a second. Not a time, so that a paused holder has work left when it resumes.
const STEPS: usize = 6_000;
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
    // In a task, because a runtime looks at its timers after every poll of the future that it blocks on.
    let work = async move { tokio::spawn(take_turns(node)).await.unwrap() };
    runtime.unwrap().block_on(work);
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
    for _ in 0..STEPS {
        thread::sleep(STEP);
        reschedule().await;
    }
}

/// Returns to the runtime, which polls the task again before it looks at its timers. After `yield_now`, it would look at
/// them first.
async fn reschedule() {
    let mut scheduled = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut scheduled, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
