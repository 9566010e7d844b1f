//! Mutual exclusion by an election while members, links and proxies fail at random, and proclamations that are never
//! undone by older ones.
//!
//! `CHAOS_SECS` sets the duration, `CHAOS_SEED` the seed, which the test prints.

use std::{collections::HashMap, time::Duration};

use actix_etcd::{
    Result,
    recipes::{election::Leadership, mutex::Ownership, session::Session},
};
use testbed::{Cluster, PathKind};

use crate::support::lock_competition::{Holder, LockCompetition, NAME};

/// Timeout of one proclamation. A proclamation that is given up may be applied later.
const PROCLAIM_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Clone)]
struct Candidate;

impl Holder for Candidate {
    async fn hold<F>(
        &self,
        session: &Session,
        node: usize,
        work: impl FnOnce(Ownership) -> F + Send,
    ) -> Result<()>
    where
        F: Future<Output = ()> + Send,
    {
        let leadership = session.election(NAME).campaign("0").await?;
        tokio::select! {
            biased;
            loss = leadership.lost() => return Err(loss.into()),
            () = work((*leadership).clone()) => {}
            () = proclaim_numbers(&leadership) => unreachable!("node {node} proclaims without end"),
        }
        leadership.resign().await
    }
}

/// Proclaims increasing numbers.
async fn proclaim_numbers(leadership: &Leadership) {
    for n in 1_u64.. {
        let proclamation = leadership.proclaim(n.to_string());
        let _ = tokio::time::timeout(PROCLAIM_TIMEOUT, proclamation).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails if a proclaimed number was followed by a smaller one of the same leader.
async fn check_proclamations(cluster: &Cluster) {
    let mut newest = HashMap::new();
    let mut proclamations = 0;
    for change in cluster.history(format!("{NAME}/")).await {
        // The competition locks a mutex of the same name at its end, whose key has no value.
        let Some(value) = change.value.filter(|value| !value.is_empty()) else {
            continue;
        };
        let number: u64 = String::from_utf8(value).unwrap().parse().unwrap();
        let before = newest.insert(change.create_revision, number);
        assert!(
            before.is_none_or(|before| before <= number),
            "the proclamation {before:?} of leader {} was replaced by {number} at revision {}",
            change.create_revision,
            change.revision
        );
        proclamations += 1;
    }
    println!("{proclamations} proclamations by {} leaders", newest.len());
    assert!(proclamations > newest.len(), "nothing was proclaimed");
}

async fn check_election(path: PathKind) {
    let cluster = LockCompetition::run("election", path, Candidate).await;
    check_proclamations(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_never_overlap_during_random_faults() {
    check_election(PathKind::Direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_never_overlap_through_tcp_balancer() {
    check_election(PathKind::TcpBalancer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_never_overlap_through_grpc_proxies() {
    check_election(PathKind::GrpcProxy).await;
}
