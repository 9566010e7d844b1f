//! An actor that runs on one node only while members and links fail at random: by a counter that only it writes, and
//! by the clock.
//!
//! `CHAOS_SECS` and `CHAOS_SEED` say how long and from which seed; the seed is printed.

use std::time::Duration;

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Running, fut::wrap_future,
};
use actix_etcd::{
    Client,
    recipes::{election::Held, singleton::Singleton},
};
use testbed::{Chaos, ChaosKind, Cluster};

use crate::support::{
    exclusion_counter::{Shared, Working, count_up, counted, moves_when_cut_off},
    node_links::{OwnLinks, cut_at_random},
    wait::until,
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(3);

/// Counts up for as long as it lives, and takes its time to end.
struct Counting {
    etcd: Client,
    leadership: Held,
    record: Shared,
    _working: Working,
    last_words: Option<Duration>,
}

impl Actor for Counting {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let (etcd, held) = (self.etcd.clone(), self.leadership.clone());
        let record = self.record.clone();
        let work = async move {
            while count_up(&etcd, &held, &record).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        ctx.spawn(wrap_future::<_, Self>(work).map(|(), _, ctx: &mut Context<Self>| ctx.stop()));
    }

    fn stopping(&mut self, ctx: &mut Self::Context) -> Running {
        let Some(last_words) = self.last_words.take() else {
            return Running::Stop;
        };
        ctx.run_later(last_words, |_, ctx| ctx.stop());
        Running::Continue
    }
}

fn node(who: usize, etcd: &Client, record: &Shared) -> Singleton<Counting> {
    let (client, record) = (etcd.clone(), record.clone());
    let make = move |leadership| Counting {
        etcd: client.clone(),
        leadership,
        record: record.clone(),
        _working: Working::start(who, &record),
        last_words: Some(SECOND / 5),
    };
    etcd.singleton("only").ttl(TTL).start(make).unwrap()
}

#[actix::test]
async fn never_are_two_alive_while_members_and_links_fail_at_random() {
    let cluster = Cluster::start(3).await;
    let record = Shared::default();
    let links: Vec<_> = (0..3).map(|_| OwnLinks::to(&cluster)).collect();
    let mut nodes = Vec::new();
    for (who, own) in links.iter().enumerate() {
        let etcd = Client::connect(own.endpoints()).await.unwrap();
        nodes.push(node(who, &etcd, &record));
    }
    // All members at once, for longer than a lease. And one node at a time, while the others reach whoever is left.
    let chaos = Chaos::from_env("singleton").max_faulty_members(3);
    let chaos = chaos.fault_duration(SECOND / 5, 5 * SECOND);
    let (faults, cuts) = tokio::join!(
        chaos.run(&cluster, &ChaosKind::ALL),
        cut_at_random(&links, chaos.seed(), chaos.duration(), TTL),
    );
    println!("{} faults, {cuts} cuts", faults.len());
    let before = record.lock().unwrap().writes.len();
    until("it works somewhere after the faults", || {
        record.lock().unwrap().writes.len() > before
    })
    .await;
    moves_when_cut_off(&record, &links).await;
    for node in nodes {
        node.stop().await;
    }
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let counted = counted(&etcd).await.unwrap();
    record.lock().unwrap().check(counted);
}
