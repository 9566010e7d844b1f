//! Records when a cluster served reads, independently of the client under test.

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

/// A read that takes longer, or a longer time between two reads, counts as unavailability.
const MAX_GAP: Duration = Duration::from_millis(400);
/// Readers without a pause would take the CPU from the client under test.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads from each member through etcd's HTTP gateway, bypassing the fault proxies.
pub struct AvailabilityMonitor {
    stop: Arc<AtomicBool>,
    served: Arc<Mutex<Vec<Instant>>>,
    readers: Vec<JoinHandle<()>>,
}

impl AvailabilityMonitor {
    pub fn start(cluster: &Cluster) -> Self {
        let (stop, served) = (Arc::default(), Arc::default());
        let readers = (0..cluster.len()).map(|index| {
            let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
            tokio::spawn(read(cluster.clone(), index, stop, served))
        });
        Self {
            readers: readers.collect(),
            stop,
            served,
        }
    }

    pub async fn finish(self) -> Availability {
        self.stop.store(true, Ordering::Relaxed);
        for reader in self.readers {
            reader.await.unwrap();
        }
        let mut served = std::mem::take(&mut *self.served.lock().unwrap());
        served.sort();
        Availability(served)
    }
}

async fn read(
    cluster: Cluster,
    index: usize,
    stop: Arc<AtomicBool>,
    served: Arc<Mutex<Vec<Instant>>>,
) {
    let range = json!({"key": encode("availability")});
    while !stop.load(Ordering::Relaxed) {
        let read = cluster.api(index, "/v3/kv/range", range.clone());
        if matches!(timeout(MAX_GAP, read).await, Ok(Ok(_))) {
            served.lock().unwrap().push(Instant::now());
        }
        sleep(PAUSE).await;
    }
}

/// The times of all successful reads, in ascending order.
pub struct Availability(Vec<Instant>);

impl Availability {
    /// Returns the longest uninterrupted time between these bounds in which the cluster served reads.
    pub fn longest_between(&self, from: Instant, until: Instant) -> Duration {
        let within = self
            .0
            .iter()
            .copied()
            .filter(|at| (from..=until).contains(at));
        let (mut longest, mut since, mut last) = (Duration::ZERO, None, None);
        for at in within {
            if last.is_none_or(|last| at - last > MAX_GAP) {
                since = Some(at);
            }
            last = Some(at);
            longest = longest.max(since.map_or(Duration::ZERO, |since| at - since));
        }
        longest
    }
}

#[test]
fn longest_availability_excludes_gaps() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let availability = Availability([0, 100, 900, 1200, 1500, 1900, 5000].map(at).to_vec());
    let longest = |from, until| {
        availability
            .longest_between(at(from), at(until))
            .as_millis()
    };
    assert_eq!(longest(0, 6000), 1000);
    assert_eq!(longest(0, 1300), 300);
    assert_eq!(longest(2000, 4000), 0);
}
