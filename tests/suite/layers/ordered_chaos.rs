//! Ordered reads while members, links and the leader fail at random, and the endpoints of the client change.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use actix_etcd::Client;
use testbed::{Chaos, ChaosKind, Cluster};

use crate::support::{
    auth_cluster::rare_probes, connected_cluster::connect_with, wait::hold,
    write_load::put_until_ok,
};

const READERS: usize = 3;

/// What several readers of one client have read.
#[derive(Default)]
struct Observed {
    newest: AtomicI64,
    reads: AtomicU64,
    /// Responses older than one that arrived before their request was sent.
    older: AtomicU64,
}

impl Observed {
    async fn read(&self, etcd: &Client) {
        let before = self.newest.load(Ordering::SeqCst);
        match etcd.get("k").serializable().await {
            Ok(read) => {
                // The values are the revisions before their writes, so they only grow.
                let value = read
                    .value()
                    .map_or("0", |value| std::str::from_utf8(value).unwrap());
                assert!(value.parse::<i64>().unwrap() < read.header.revision);
                let is_older = read.header.revision < before;
                self.newest
                    .fetch_max(read.header.revision, Ordering::SeqCst);
                self.reads.fetch_add(1, Ordering::SeqCst);
                self.older.fetch_add(u64::from(is_older), Ordering::SeqCst);
            }
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        // Leaves time for the members and the other tests.
        hold(Duration::from_millis(1)).await;
    }
}

/// Reads with clones of the client until aborted.
fn start_readers(etcd: &Client, observed: &Arc<Observed>) -> Vec<tokio::task::JoinHandle<()>> {
    let reader = |_| {
        let (etcd, observed) = (etcd.clone(), observed.clone());
        tokio::spawn(async move {
            loop {
                observed.read(&etcd).await;
            }
        })
    };
    (0..READERS).map(reader).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revision_never_goes_back_under_random_faults() {
    let cluster = Cluster::start(3).await;
    let builder = Client::builder(cluster.member_endpoints()).liveness(rare_probes());
    let plain = connect_with(builder.request_timeout(Duration::from_secs(2))).await;
    let ordered = plain.ordered();
    let (by_plain, by_ordered) = (Arc::<Observed>::default(), Arc::<Observed>::default());
    let mut readers = start_readers(&plain, &by_plain);
    readers.extend(start_readers(&ordered, &by_ordered));
    let writer = connect_with(Client::builder(cluster.direct_endpoints())).await;
    let writer = tokio::spawn(async move {
        let mut revision = 0;
        loop {
            revision = put_until_ok(&writer, "k", &revision.to_string()).await;
            hold(Duration::from_millis(5)).await;
        }
    });
    let switched = plain.clone();
    let endpoints = cluster.member_endpoints();
    let switches = tokio::spawn(async move {
        for omitted in (0..endpoints.len()).cycle() {
            let mut rest = endpoints.clone();
            rest.remove(omitted);
            switched.set_endpoints(rest).await.unwrap();
            hold(Duration::from_millis(150)).await;
            switched.set_endpoints(endpoints.clone()).await.unwrap();
            hold(Duration::from_millis(300)).await;
        }
    });
    let faults = Chaos::from_env("ordered")
        .run(&cluster, &ChaosKind::ALL)
        .await;
    switches.abort();
    writer.abort();
    for reader in readers {
        assert!(!reader.is_finished(), "a reader failed: {:?}", reader.await);
        reader.abort();
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    println!(
        "{} faults; plain: {} reads, {} older; ordered: {} reads",
        faults.len(),
        count(&by_plain.reads),
        count(&by_plain.older),
        count(&by_ordered.reads)
    );
    assert!(count(&by_ordered.reads) > 100, "the readers were stuck");
    assert_eq!(count(&by_ordered.older), 0);
}
