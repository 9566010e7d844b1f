//! What a client sees that always knows which member serves: one writer a member, past the proxies, 400 ms a call.
//!
//! An election takes its time, whoever the client is; this tells how much. It speaks to etcd's JSON gateway, so that
//! nothing of what is measured is in it.

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

use crate::calls::now;

const PATIENCE: Duration = Duration::from_millis(400);
/// Three writers without pause would take the CPU from the client that is measured.
const PAUSE: Duration = Duration::from_millis(10);

/// The writers at work.
pub struct Ideal {
    successes: Arc<Mutex<Vec<u128>>>,
    over: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl Ideal {
    pub fn start(cluster: &Cluster) -> Self {
        let (successes, over) = (Arc::default(), Arc::default());
        let writers = (0..cluster.len()).map(|index| {
            tokio::spawn(write(
                cluster.clone(),
                index,
                Arc::clone(&successes),
                Arc::clone(&over),
            ))
        });
        Self {
            writers: writers.collect(),
            successes,
            over,
        }
    }

    /// When each success was, in order.
    pub async fn stop(self) -> Vec<u128> {
        self.over.store(true, Ordering::Relaxed);
        for writer in self.writers {
            writer.await.expect("a writer of the ideal does not fail");
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
    over: Arc<AtomicBool>,
) {
    let body = json!({"key": encode(format!("ideal/{index}")), "value": encode("x")});
    while !over.load(Ordering::Relaxed) {
        let call = cluster.api(index, "/v3/kv/put", body.clone());
        if matches!(timeout(PATIENCE, call).await, Ok(Ok(_))) {
            let mut successes = successes.lock().unwrap_or_else(PoisonError::into_inner);
            successes.push(now());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
