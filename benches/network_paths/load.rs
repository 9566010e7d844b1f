//! The load of one client: writers, readers, a watch and a lease, which record their results.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, Error, Outcome, WatchEvent,
    lease::{Lease, LeaseEvent},
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_stream::StreamExt;

use crate::clock::now;

/// Prefix of the writers' keys.
pub const PUT_PREFIX: &str = "put/";
/// Prefix of the keys that the baseline writes, and that the watch reads.
pub const WATCHED_PREFIX: &str = "baseline/";
/// TTL of the lease. It is renewed three times per TTL.
pub const TTL: Duration = Duration::from_secs(6);
const WRITERS: usize = 4;
const READERS: usize = 2;
/// Pause between calls, so that the cluster and the proxies keep free CPU time.
const PAUSE: Duration = Duration::from_millis(3);

/// One call. Times are microseconds since 1970.
pub struct CallRecord {
    pub ended: u128,
    /// Error kind and outcome of a failed call.
    pub failure: Option<(String, Outcome)>,
    /// Key of a write; it is used once.
    pub key: String,
}

/// Everything that the load has recorded.
#[derive(Default)]
pub struct Records {
    pub puts: Vec<CallRecord>,
    pub gets: Vec<CallRecord>,
    /// Time and revision of each batch of events.
    pub events: Vec<(u128, i64)>,
    /// First revision that the watch must deliver.
    pub watched_from: i64,
    pub renewals: Vec<u128>,
    pub lost_leases: Vec<(u128, String)>,
}

type Shared = Arc<Mutex<Records>>;

/// A running load.
pub struct Load {
    client: Client,
    stop: Arc<AtomicBool>,
    records: Shared,
    callers: Vec<JoinHandle<()>>,
    background: Vec<JoinHandle<()>>,
}

impl Load {
    pub async fn start(client: &Client) -> Self {
        let records = Shared::default();
        let stop = Arc::new(AtomicBool::new(false));
        let watch = client.watch(WATCHED_PREFIX).prefix().await;
        let watch = watch.expect("open a watch on a healthy cluster");
        lock(&records).watched_from = watch.revision() + 1;
        let lease = grant(client).await.expect("a lease of a healthy cluster");
        let background = vec![
            tokio::spawn(record_events(watch, records.clone())),
            tokio::spawn(record_renewals(client.clone(), lease, records.clone())),
        ];
        let caller = |number: usize| {
            let caller = Caller {
                client: client.clone(),
                stop: stop.clone(),
                records: records.clone(),
            };
            tokio::spawn(async move {
                if number < WRITERS {
                    caller.write(number).await;
                } else {
                    caller.read().await;
                }
            })
        };
        let callers = (0..WRITERS + READERS).map(caller).collect();
        Self {
            client: client.clone(),
            callers,
            background,
            stop,
            records,
        }
    }

    /// Stops the load. The watch gets time to deliver the last events.
    pub async fn stop(self) -> Records {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.expect("a caller does not panic");
        }
        sleep(Duration::from_secs(1)).await;
        for task in self.background {
            task.abort();
        }
        let _ = timeout(Duration::from_secs(5), self.client.shutdown()).await;
        let mut records = std::mem::take(&mut *lock(&self.records));
        records.puts.sort_by_key(|call| call.ended);
        records.gets.sort_by_key(|call| call.ended);
        records
    }
}

fn lock(records: &Shared) -> std::sync::MutexGuard<'_, Records> {
    records.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Caller {
    client: Client,
    stop: Arc<AtomicBool>,
    records: Shared,
}

impl Caller {
    async fn write(&self, number: usize) {
        for count in 0u64.. {
            let key = format!("{PUT_PREFIX}{number}/{count}");
            let result = self.client.put(&key, "v").await;
            let record = record(key, result.err());
            lock(&self.records).puts.push(record);
            if self.pause().await {
                return;
            }
        }
    }

    async fn read(&self) {
        loop {
            let result = self.client.get("put/0/0").await;
            let record = record(String::new(), result.err());
            lock(&self.records).gets.push(record);
            if self.pause().await {
                return;
            }
        }
    }

    /// Returns whether the load has been stopped.
    async fn pause(&self) -> bool {
        sleep(PAUSE).await;
        self.stop.load(Ordering::Relaxed)
    }
}

fn record(key: String, error: Option<Error>) -> CallRecord {
    CallRecord {
        ended: now(),
        failure: error.map(|error| (format!("{:?}", error.kind()), error.outcome())),
        key,
    }
}

async fn record_events(mut watch: actix_etcd::Watch, records: Shared) {
    while let Some(item) = watch.next().await {
        if let WatchEvent::Events(events) = item {
            lock(&records).events.push((now(), events.revision()));
        }
    }
}

async fn grant(client: &Client) -> Result<Lease, Error> {
    client.lease(TTL).keep_alive().await
}

/// Records the renewals of a lease. If it is lost, grants another, so that later faults are measured too.
async fn record_renewals(client: Client, mut lease: Lease, records: Shared) {
    loop {
        let mut events = lease.events();
        while let Some(event) = events.next().await {
            match event {
                LeaseEvent::Renewed { .. } => lock(&records).renewals.push(now()),
                LeaseEvent::Lost(reason) => {
                    let reason = format!("{reason:?}");
                    lock(&records).lost_leases.push((now(), reason));
                    break;
                }
                _ => {}
            }
        }
        lease = loop {
            match grant(&client).await {
                Ok(lease) => break lease,
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        };
    }
}
