//! Nodes that compete for a lock or a leadership while members, links and proxies fail at random. A counter that only
//! the holder writes, and the times of its work, show whether two nodes ever were the holder at the same time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, Result,
    recipes::{mutex::Ownership, session::Session},
};
use testbed::{Chaos, ChaosKind, ChaosPath, Cluster, PathKind};
use tokio::{sync::watch, task::JoinHandle};

use crate::support::{
    connected_cluster::connect,
    exclusion_counter::{
        SharedRecord, WorkPeriod, cut_off_working_node, increment_counter, read_counter,
    },
    node_links::{NodeLinks, cut_links_randomly, freeze_single_links},
    wait::{TEST_TIMEOUT, until, until_async},
};

/// Name of the lock or the election.
pub const NAME: &str = "l";
/// Prefix of the keys of all holders and waiters.
const PREFIX: &str = "l/";
pub const TTL: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);
const NODES: usize = 3;
/// Time until the keys of all former holders and waiters are deleted: a second, and room for a busy machine.
const CLEANUP_TIME: Duration = Duration::from_secs(3);

/// How the nodes use the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Hold the lock for a moment.
    TakeTurns,
    /// Hold the lock until it is lost.
    Hold,
    /// Keep the session, but do not request the lock.
    Idle,
    Stop,
}

/// Becomes the holder, runs the work and gives the lock up. Fails if the lock could not be acquired, or was lost.
pub trait Holder: Clone + Send + 'static {
    fn hold<F>(
        &self,
        session: &Session,
        node: usize,
        work: impl FnOnce(Ownership) -> F + Send,
    ) -> impl Future<Output = Result<()>> + Send
    where
        F: Future<Output = ()> + Send;
}

#[derive(Clone)]
struct Node<H> {
    number: usize,
    etcd: Client,
    holder: H,
    record: SharedRecord,
    mode: watch::Receiver<Mode>,
    idle_nodes: Arc<AtomicUsize>,
}

impl<H: Holder> Node<H> {
    fn competes(&self) -> bool {
        matches!(*self.mode.borrow(), Mode::TakeTurns | Mode::Hold)
    }

    async fn run(mut self) {
        while *self.mode.borrow() != Mode::Stop {
            let Ok(session) = self.etcd.session(TTL).await else {
                continue;
            };
            // A session is used until it is lost, so that keys which it left behind would stay.
            while session.lease().is_some() && self.competes() {
                let node = self.clone();
                let work = move |held| node.work(held);
                if let Err(error) = self.holder.hold(&session, self.number, work).await {
                    println!("node {}: {error}", self.number);
                    self.record.lock().unwrap().losses += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            if !self.competes() {
                self.idle_nodes.fetch_add(1, Ordering::SeqCst);
                let _ = self.mode.wait_for(|mode| *mode == Mode::Stop).await;
            }
        }
        self.etcd.shutdown().await;
    }

    async fn work(self, held: Ownership) {
        let _period = WorkPeriod::start(self.number, &self.record);
        let mut increments = 0;
        while increments < 3 || *self.mode.borrow() == Mode::Hold {
            if !increment_counter(&self.etcd, &held, &self.record).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            increments += 1;
        }
    }
}

/// Nodes that compete on a path to a cluster.
pub struct LockCompetition {
    cluster: Cluster,
    record: SharedRecord,
    mode: watch::Sender<Mode>,
    idle_nodes: Arc<AtomicUsize>,
    path: ChaosPath,
    links: Vec<NodeLinks>,
    /// Links in front of `links`, of which one at a time freezes for each node.
    outer_links: Vec<NodeLinks>,
    nodes: Vec<JoinHandle<()>>,
}

impl LockCompetition {
    /// Runs the competition with random faults, and fails if two nodes were the holder at the same time, if a later
    /// holder cannot get the lock, or if a node left a key behind. Returns the cluster.
    pub async fn run(name: &str, path: PathKind, holder: impl Holder) -> Cluster {
        let competition = Self::start(path, holder).await;
        competition.inject_faults(name).await;
        competition.check().await
    }

    async fn start(path: PathKind, holder: impl Holder) -> Self {
        let cluster = Cluster::start(3).await;
        let path = ChaosPath::open(path, &cluster).await;
        let record = SharedRecord::default();
        let idle_nodes = Arc::<AtomicUsize>::default();
        let (set_mode, mode) = watch::channel(Mode::TakeTurns);
        let links: Vec<_> = (0..NODES)
            .map(|_| NodeLinks::to(&path.endpoints()))
            .collect();
        let outer_links: Vec<_> = links
            .iter()
            .map(|links| NodeLinks::to(&links.endpoints()))
            .collect();
        let mut nodes = Vec::new();
        for (number, links) in outer_links.iter().enumerate() {
            let node = Node {
                number,
                etcd: connect(links.endpoints()).await,
                holder: holder.clone(),
                record: record.clone(),
                mode: mode.clone(),
                idle_nodes: idle_nodes.clone(),
            };
            nodes.push(tokio::spawn(node.run()));
        }
        Self {
            cluster,
            record,
            mode: set_mode,
            idle_nodes,
            path,
            links,
            outer_links,
            nodes,
        }
    }

    /// Up to all members fail at once, for longer than a lease, so that holders lose their locks. In addition, one node
    /// at a time is cut off, and each node has one frozen link for longer: requests in it arrive
    /// long after their node has given them up.
    async fn inject_faults(&self, name: &str) {
        let chaos = Chaos::from_env(&format!("{name}, {}", self.path.kind().name()))
            .max_faulty_members(3)
            .fault_duration(SECOND / 5, 4 * SECOND);
        let (faults, cuts, frozen) = tokio::join!(
            chaos.run_through(&self.path, &self.cluster, &ChaosKind::ALL),
            cut_links_randomly(&self.links, chaos.seed(), chaos.duration(), TTL),
            freeze_single_links(&self.outer_links, chaos.seed(), chaos.duration()),
        );
        println!("{faults}, {cuts} cuts of nodes, {frozen} frozen links");
    }

    async fn check(self) -> Cluster {
        let (writes, losses) = {
            let record = self.record.lock().unwrap();
            (record.writes.len(), record.losses)
        };
        let etcd = connect(self.cluster.endpoints()).await;
        let started = Instant::now();
        until_async("a holder works after the faults", async || {
            let works = self.record.lock().unwrap().writes.len() > writes;
            if !works && started.elapsed() + SECOND > TEST_TIMEOUT {
                let keys = etcd.get(PREFIX).prefix().await.unwrap().kvs;
                panic!("no holder works after the faults, and these keys exist: {keys:?}");
            }
            works
        })
        .await;
        self.mode.send_replace(Mode::Hold);
        cut_off_working_node(&self.record, &self.links).await;
        until("the cut off holder has noticed the loss", || {
            self.record.lock().unwrap().losses > losses
        })
        .await;
        self.mode.send_replace(Mode::Idle);
        until("no node requests the lock", || {
            self.idle_nodes.load(Ordering::SeqCst) == NODES
        })
        .await;
        let cleanup = check_nothing_left(&etcd, PREFIX).await;
        println!("0 ghosts: no key is left and the lock is free after {cleanup:?}");
        self.mode.send_replace(Mode::Stop);
        for node in self.nodes {
            node.await.unwrap();
        }
        let counter = read_counter(&etcd).await.unwrap();
        self.record.lock().unwrap().check(counter);
        self.cluster
    }
}

/// Fails unless all keys of former holders and waiters are deleted in time, and a new session then gets the lock.
/// Returns how long that took. The former sessions must still be open, because their end would delete their keys.
pub async fn check_nothing_left(etcd: &Client, prefix: &'static str) -> Duration {
    let started = Instant::now();
    until_async("the keys under the lock's name are deleted", async || {
        let left = etcd.get(prefix).prefix().await.unwrap();
        assert!(
            left.kvs.is_empty() || started.elapsed() < CLEANUP_TIME,
            "{} ghosts after {:?}: {:?}",
            left.count,
            started.elapsed(),
            left.kvs
        );
        left.kvs.is_empty()
    })
    .await;
    let session = etcd.session(TTL).await.unwrap();
    let lock = session.mutex(prefix.trim_end_matches('/'));
    let guard = lock.lock_within(CLEANUP_TIME).await.unwrap();
    guard.unlock().await.unwrap();
    session.close().await.unwrap();
    started.elapsed()
}
