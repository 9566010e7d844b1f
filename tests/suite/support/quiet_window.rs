//! Runs measurements in windows without elections or connectivity changes, so that tests can assert exact counts.
//! On a busy machine a member may lose its leader or be considered slow at any time.

use std::time::Instant;

use actix_etcd::{Client, balancer::ConnectivityState};
use testbed::Cluster;

use crate::support::wait::until;

/// Number of disturbed windows after which a test fails.
const MAX_WINDOWS: usize = 10;

/// Returns the number of members that are ready for requests of this client.
pub fn ready_members(client: &Client) -> usize {
    let members = client.connectivity();
    let members = members.iter();
    members
        .filter(|member| member.state == ConnectivityState::Ready)
        .count()
}

/// Returns the raft term, and since when each member is ready. A dial of another member is no
/// disturbance.
async fn term_and_readiness(cluster: &Cluster, client: &Client) -> (u64, Vec<Option<Instant>>) {
    let members = client.connectivity();
    let ready = members
        .iter()
        .map(|member| (member.state == ConnectivityState::Ready).then_some(member.since));
    (cluster.term().await, ready.collect())
}

/// Repeats the measurement until this many members are ready before it and nothing changes during it. The measurement
/// returns `None` if it detects a disturbance itself.
pub async fn in_quiet_window<T>(
    cluster: &Cluster,
    client: &Client,
    members: usize,
    measure: impl AsyncFn() -> Option<T>,
) -> T {
    for _ in 0..MAX_WINDOWS {
        until("members are ready", || ready_members(client) == members).await;
        let before = term_and_readiness(cluster, client).await;
        let measured = measure().await;
        match measured {
            Some(measured) if before == term_and_readiness(cluster, client).await => {
                return measured;
            }
            _ => println!("quiet window was disturbed, repeating"),
        }
    }
    panic!("all {MAX_WINDOWS} windows were disturbed");
}

/// Repeats the measurement until no election happens during it.
pub async fn without_election<T>(cluster: &Cluster, measure: impl AsyncFn() -> T) -> T {
    for _ in 0..MAX_WINDOWS {
        let before = cluster.term().await;
        let measured = measure().await;
        if cluster.term().await == before {
            return measured;
        }
        println!("election during the window, repeating");
        cluster.wait_healthy().await;
    }
    panic!("elections in all {MAX_WINDOWS} windows");
}
