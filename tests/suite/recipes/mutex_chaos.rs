//! Mutual exclusion by a mutex while members, links and proxies fail at random, and no key left behind.
//!
//! `CHAOS_SECS` sets the duration, `CHAOS_SEED` the seed, which the test prints.

use actix_etcd::{
    Result,
    recipes::{mutex::Ownership, session::Session},
};
use testbed::PathKind;

use crate::support::lock_competition::{Holder, LockCompetition, NAME};

#[derive(Clone)]
struct LockHolder;

impl Holder for LockHolder {
    async fn hold<F>(
        &self,
        session: &Session,
        _: usize,
        work: impl FnOnce(Ownership) -> F + Send,
    ) -> Result<()>
    where
        F: Future<Output = ()> + Send,
    {
        session.mutex(NAME).scope(work).await
    }
}

async fn check_mutex(path: PathKind) {
    LockCompetition::run("mutex", path, LockHolder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_holders_never_overlap_during_random_faults() {
    check_mutex(PathKind::Direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_holders_never_overlap_through_tcp_balancer() {
    check_mutex(PathKind::TcpBalancer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_holders_never_overlap_through_grpc_proxies() {
    check_mutex(PathKind::GrpcProxy).await;
}
