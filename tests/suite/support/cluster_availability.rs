//! When a cluster served at all, whoever the client is.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use testbed::{Cluster, encode};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

/// A member that takes longer does not serve.
const PATIENCE: Duration = Duration::from_millis(400);
/// Readers without pause would take the CPU from what is tested.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads from each member, past the proxies and through etcd's own gateway.
pub struct Witness {
    over: Arc<AtomicBool>,
    served: Arc<Mutex<Vec<Instant>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Witness {
    pub fn start(cluster: &Cluster) -> Self {
        let (over, served) = (Arc::default(), Arc::default());
        let readers = (0..cluster.len()).map(|index| {
            let (over, served) = (Arc::clone(&over), Arc::clone(&served));
            tokio::spawn(read(cluster.clone(), index, over, served))
        });
        Self {
            readers: readers.collect(),
            over,
            served,
        }
    }

    pub async fn finish(self) -> Served {
        self.over.store(true, Ordering::Relaxed);
        for reader in self.readers {
            reader.await.unwrap();
        }
        let mut served = std::mem::take(&mut *self.served.lock().unwrap());
        served.sort();
        Served(served)
    }
}

async fn read(
    cluster: Cluster,
    index: usize,
    over: Arc<AtomicBool>,
    served: Arc<Mutex<Vec<Instant>>>,
) {
    let range = json!({"key": encode("witness")});
    while !over.load(Ordering::Relaxed) {
        let read = cluster.api(index, "/v3/kv/range", range.clone());
        if matches!(timeout(PATIENCE, read).await, Ok(Ok(_))) {
            served.lock().unwrap().push(Instant::now());
        }
        sleep(PAUSE).await;
    }
}

/// The times at which a member served, in order.
pub struct Served(Vec<Instant>);

impl Served {
    /// The longest time within these bounds in which the cluster served without a gap.
    pub fn longest_between(&self, from: Instant, until: Instant) -> Duration {
        let within = self
            .0
            .iter()
            .copied()
            .filter(|at| (from..=until).contains(at));
        let (mut longest, mut since, mut last) = (Duration::ZERO, None, None);
        for at in within {
            if last.is_none_or(|last| at - last > PATIENCE) {
                since = Some(at);
            }
            last = Some(at);
            longest = longest.max(since.map_or(Duration::ZERO, |since| at - since));
        }
        longest
    }
}

#[test]
fn the_longest_service_within_bounds_is_the_one_without_a_gap() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let served = Served([0, 100, 900, 1200, 1500, 1900, 5000].map(at).to_vec());
    let longest = |from, until| served.longest_between(at(from), at(until)).as_millis();
    assert_eq!(longest(0, 6000), 1000);
    assert_eq!(longest(0, 1300), 300);
    assert_eq!(longest(2000, 4000), 0);
}
