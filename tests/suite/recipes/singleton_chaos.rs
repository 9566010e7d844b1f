//! A singleton while members, links and proxies fail at random. A counter that only the singleton writes, and the times of its
//! work, show whether two of its actors were ever alive at the same time.
//!
//! `CHAOS_SECS` sets the duration, `CHAOS_SEED` the seed, which the test prints.

use std::time::Duration;

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Running, fut::wrap_future,
};
use actix_etcd::{
    Client,
    recipes::{election::Ownership, singleton::Singleton},
};
use testbed::{Chaos, ChaosKind, ChaosPath, Cluster, PathKind};

use crate::support::{
    exclusion_counter::{
        SharedRecord, WorkPeriod, cut_off_working_node, increment_counter, read_counter,
    },
    lock_competition::check_nothing_left,
    node_links::{NodeLinks, cut_links_randomly},
    wait::until,
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(3);

/// Increments the counter while it is alive, and stops with a delay.
struct CountingActor {
    etcd: Client,
    leadership: Ownership,
    record: SharedRecord,
    _work_period: WorkPeriod,
    stop_delay: Option<Duration>,
}

impl Actor for CountingActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let (etcd, held) = (self.etcd.clone(), self.leadership.clone());
        let record = self.record.clone();
        let work = async move {
            while increment_counter(&etcd, &held, &record).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        ctx.spawn(wrap_future::<_, Self>(work).map(|(), _, ctx: &mut Context<Self>| ctx.stop()));
    }

    fn stopping(&mut self, ctx: &mut Self::Context) -> Running {
        let Some(delay) = self.stop_delay.take() else {
            return Running::Stop;
        };
        ctx.run_later(delay, |_, ctx| ctx.stop());
        Running::Continue
    }
}

fn start_node(node: usize, etcd: &Client, record: &SharedRecord) -> Singleton<CountingActor> {
    let (client, record) = (etcd.clone(), record.clone());
    let make = move |leadership| CountingActor {
        etcd: client.clone(),
        leadership,
        record: record.clone(),
        _work_period: WorkPeriod::start(node, &record),
        stop_delay: Some(SECOND / 5),
    };
    etcd.singleton("only").ttl(TTL).start(make).unwrap()
}

async fn check_singleton(path: PathKind) {
    let cluster = Cluster::start(3).await;
    let path = ChaosPath::open(path, &cluster).await;
    let record = SharedRecord::default();
    let links: Vec<_> = (0..3).map(|_| NodeLinks::to(&path.endpoints())).collect();
    let mut singletons = Vec::new();
    for (node, links) in links.iter().enumerate() {
        let etcd = Client::connect(links.endpoints()).await.unwrap();
        singletons.push(start_node(node, &etcd, &record));
    }
    // Up to all members fail at once, for longer than a lease. In addition, one node at a time is cut off.
    let chaos = Chaos::from_env(&format!("singleton, {}", path.kind().name()))
        .max_faulty_members(3)
        .fault_duration(SECOND / 5, 5 * SECOND);
    let (faults, cuts) = tokio::join!(
        chaos.run_through(&path, &cluster, &ChaosKind::ALL),
        cut_links_randomly(&links, chaos.seed(), chaos.duration(), TTL),
    );
    println!("{faults}, {cuts} cuts of nodes");
    let before = record.lock().unwrap().writes.len();
    until("the singleton works after the faults", || {
        record.lock().unwrap().writes.len() > before
    })
    .await;
    cut_off_working_node(&record, &links).await;
    for singleton in singletons {
        singleton.stop().await;
    }
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let cleanup = check_nothing_left(&etcd, "only/").await;
    println!("0 ghosts: no key is left and the name is free after {cleanup:?}");
    let counter = read_counter(&etcd).await.unwrap();
    record.lock().unwrap().check(counter);
}

#[actix::test]
async fn singleton_never_overlaps_during_random_faults() {
    check_singleton(PathKind::Direct).await;
}

#[actix::test]
async fn singleton_never_overlaps_through_tcp_balancer() {
    check_singleton(PathKind::TcpBalancer).await;
}

#[actix::test]
async fn singleton_never_overlaps_through_grpc_proxies() {
    check_singleton(PathKind::GrpcProxy).await;
}
