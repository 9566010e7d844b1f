//! The baseline: the best that any client could achieve, as if it always knew which member serves.
//!
//! One writer per member, bypassing the proxies, with a timeout of 400 ms per call. It measures interruptions that no
//! client can avoid, such as elections. It uses etcd's JSON gateway, to be independent of the clients under test.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use testbed::{Cluster, encode};
use tokio::{task::JoinHandle, time::timeout};

use crate::clock::now;

const CALL_TIMEOUT: Duration = Duration::from_millis(400);
/// Without a pause, the writers would take CPU time from the client under test.
const PAUSE: Duration = Duration::from_millis(10);

/// The running writers.
pub struct Baseline {
    successes: Arc<Mutex<Vec<u128>>>,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl Baseline {
    pub fn start(cluster: &Cluster) -> Self {
        let (successes, stop) = (Arc::default(), Arc::default());
        let writers = (0..cluster.len()).map(|index| {
            tokio::spawn(write(
                cluster.clone(),
                index,
                Arc::clone(&successes),
                Arc::clone(&stop),
            ))
        });
        Self {
            writers: writers.collect(),
            successes,
            stop,
        }
    }

    /// Stops the writers. Returns the time of each success, in order.
    pub async fn stop(self) -> Vec<u128> {
        self.stop.store(true, Ordering::Relaxed);
        for writer in self.writers {
            writer.await.expect("a baseline writer does not panic");
        }
        let mut successes = self
            .successes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        successes.sort_unstable();
        std::mem::take(&mut successes)
    }
}

async fn write(
    cluster: Cluster,
    index: usize,
    successes: Arc<Mutex<Vec<u128>>>,
    stop: Arc<AtomicBool>,
) {
    let body = json!({"key": encode(format!("baseline/{index}")), "value": encode("x")});
    while !stop.load(Ordering::Relaxed) {
        let call = cluster.api(index, "/v3/kv/put", body.clone());
        if matches!(timeout(CALL_TIMEOUT, call).await, Ok(Ok(_))) {
            let mut successes = successes.lock().unwrap_or_else(PoisonError::into_inner);
            successes.push(now());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
