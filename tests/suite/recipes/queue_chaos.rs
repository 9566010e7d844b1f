//! A queue while members, links and the leader fail at random, and takers crash.
//!
//! The completion of an item also writes a key of a ledger, whose version counts the completions.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use actix_etcd::{
    Client, Error, ErrorKind, Outcome,
    kv::put,
    recipes::{
        mutex::Ownership,
        queue::{PushedItem, Queue, QueueItem},
    },
};
use testbed::{Chaos, ChaosKind, Cluster, Fault};
use tokio::task::JoinSet;

use crate::support::{node_links::NodeLinks, wait::until_async};

const TAKERS: usize = 5;
const PUSHERS: usize = 2;
const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Records {
    pushed: HashSet<String>,
    pushes_unknown: usize,
    /// The taker of each item that is not completed.
    taken_by: HashMap<String, Ownership>,
    completed: usize,
    failed: usize,
}

#[derive(Clone)]
struct Run {
    records: Arc<Mutex<Records>>,
    crashes: Arc<AtomicUsize>,
    push: Arc<AtomicBool>,
    take: Arc<AtomicBool>,
}

impl Run {
    /// Records a new taker. Fails if the previous one believes that it still has the item.
    fn taken(&self, item: &QueueItem) -> String {
        let value = String::from_utf8(item.value().to_vec()).unwrap();
        let ownership = item.ownership().clone();
        let mut records = self.records.lock().unwrap();
        if let Some(previous) = records.taken_by.insert(value.clone(), ownership.clone()) {
            assert!(
                !previous.is_certain(),
                "{value} has two takers: {previous:?}, {ownership:?}"
            );
            assert!(
                previous.token() < ownership.token(),
                "{value}: the token has not grown"
            );
        }
        value
    }

    async fn push(self, jobs: Queue<Client>, pusher: usize) {
        for n in 0.. {
            if !self.push.load(SeqCst) {
                return;
            }
            let value = format!("{pusher}/{n}");
            let pushed = jobs.push(&value).priority(fastrand::u16(..3)).await;
            self.record_push(value, pushed);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn record_push(&self, value: String, pushed: Result<PushedItem, Error>) {
        let mut records = self.records.lock().unwrap();
        match pushed {
            Ok(_) => drop(records.pushed.insert(value)),
            Err(error) if error.outcome() == Outcome::Unknown => records.pushes_unknown += 1,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    }

    /// Takes items until the end. Is cut off now and then: then its client cannot release anything. After that it has
    /// crashed, or continues although it has lost its item.
    async fn take(self, endpoints: Vec<String>, by_priority: bool) {
        while self.take.load(SeqCst) {
            let links = NodeLinks::to(&endpoints);
            let builder = Client::builder(links.endpoints()).drop_grace(Duration::ZERO);
            let Ok(etcd) = builder.connect().await else {
                continue;
            };
            let jobs = etcd.queue("jobs").ttl(2 * SECOND).visibility(2 * SECOND);
            let jobs = if by_priority {
                jobs.by_priority()
            } else {
                jobs
            };
            if let Some(item) = self.work(&jobs).await {
                links.set(Fault::Freeze);
                self.crashes.fetch_add(1, SeqCst);
                if fastrand::bool() {
                    item.lost().await;
                    tokio::time::sleep(SECOND.mul_f64(fastrand::f64())).await;
                    links.set(Fault::None);
                    let value = String::from_utf8(item.value().to_vec()).unwrap();
                    let late = item.done_with(put(format!("ledger/{value}"), "")).await;
                    self.records.lock().unwrap().completed += usize::from(late.is_ok());
                }
                drop((item, jobs, etcd));
            }
        }
    }

    /// Returns an item that is not completed because its taker is cut off.
    async fn work(&self, jobs: &Queue<Client>) -> Option<QueueItem> {
        while self.take.load(SeqCst) {
            let item = match tokio::time::timeout(SECOND, jobs.take()).await {
                Ok(Ok(item)) => item,
                Ok(Err(error)) => {
                    assert!(error.is_transient(), "{error:?}");
                    return None;
                }
                Err(_) => continue,
            };
            let value = self.taken(&item);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..20))).await;
            let result = match fastrand::u32(..100) {
                0..2 => return Some(item),
                // Dropped, which counts as failed.
                2..7 => continue,
                7..12 => item.put_back().await,
                12..15 => item.retry_after(SECOND).await,
                _ => {
                    let done = item.done_with(put(format!("ledger/{value}"), "")).await;
                    self.records.lock().unwrap().completed += usize::from(done.is_ok());
                    done
                }
            };
            if let Err(error) = result {
                self.records.lock().unwrap().failed += 1;
                let lost = [ErrorKind::LockLost, ErrorKind::SessionLost];
                assert!(
                    lost.contains(&error.kind()) || error.is_transient(),
                    "{error:?}"
                );
            }
        }
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_item_is_completed_once_under_random_faults() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let run = Run {
        records: Arc::default(),
        crashes: Arc::default(),
        push: Arc::new(AtomicBool::new(true)),
        take: Arc::new(AtomicBool::new(true)),
    };
    let (mut pushers, mut takers) = (JoinSet::new(), JoinSet::new());
    for pusher in 0..PUSHERS {
        pushers.spawn(run.clone().push(etcd.queue("jobs"), pusher));
    }
    for taker in 0..TAKERS {
        takers.spawn(run.clone().take(cluster.endpoints(), taker % 2 == 0));
    }
    let faults = Chaos::from_env("queue")
        .run(&cluster, &ChaosKind::ALL)
        .await;
    run.push.store(false, SeqCst);
    pushers.join_all().await;
    let jobs = etcd.queue("jobs");
    // The backlog of a long run takes a while. It only has to shrink.
    let left = Cell::new(u64::MAX);
    while left.get() > 0 {
        let before = left.get();
        until_async("the backlog shrinks", async || {
            left.set(jobs.len().await.unwrap_or(before));
            left.get() < before
        })
        .await;
    }
    run.take.store(false, SeqCst);
    takers.join_all().await;
    let records = std::mem::take(&mut *run.records.lock().unwrap());
    println!(
        "{} items pushed, {} unknown, {} completed, {} failures, {} cut off, {} faults",
        records.pushed.len(),
        records.pushes_unknown,
        records.completed,
        records.failed,
        run.crashes.load(SeqCst),
        faults.len()
    );
    let ledger = etcd.get("ledger/").prefix().await.unwrap();
    let completions: BTreeMap<&str, i64> = ledger
        .kvs
        .iter()
        .map(|kv| (&kv.key_str().unwrap()["ledger/".len()..], kv.version))
        .collect();
    for (value, count) in &completions {
        assert_eq!(*count, 1, "{value} was completed {count} times");
    }
    for value in &records.pushed {
        assert!(completions.contains_key(&value[..]), "{value} was lost");
    }
    let most = records.pushed.len() + records.pushes_unknown;
    assert!(
        completions.len() <= most,
        "{} items of {most}",
        completions.len()
    );
    assert!(records.completed > 50, "the takers were stuck");
    let no_claims = async || {
        etcd.get("__jobs/claims/")
            .prefix()
            .await
            .unwrap()
            .kvs
            .is_empty()
    };
    until_async("no claim is left", no_claims).await;
}
