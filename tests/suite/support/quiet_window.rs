//! Windows in which nothing happened but what the test did: only there an exact count says something. On a busy machine a
//! member may lose its leader, or be taken for slow.

use std::time::Instant;

use actix_etcd::{Client, balancer::ConnectivityState};
use testbed::Cluster;

use crate::support::wait::until;

/// So many windows in a row are not disturbed by chance.
const TRIES: usize = 10;

/// How many members a client can use.
pub fn ready(client: &Client) -> usize {
    let members = client.connectivity();
    let ready = members.iter();
    ready
        .filter(|member| member.state == ConnectivityState::Ready)
        .count()
}

/// What must not change: the term, and since when each member is ready. One that is out may be dialled again and again.
async fn scene(cluster: &Cluster, client: &Client) -> (u64, Vec<Option<Instant>>) {
    let members = client.connectivity();
    let ready = members
        .iter()
        .map(|member| (member.state == ConnectivityState::Ready).then_some(member.since));
    (cluster.term().await, ready.collect())
}

/// What a window brings in which that many members were ready and nothing changed. It says `None` where it saw for
/// itself that something else happened.
pub async fn in_calm<T>(
    cluster: &Cluster,
    client: &Client,
    members: usize,
    window: impl AsyncFn() -> Option<T>,
) -> T {
    for _ in 0..TRIES {
        until("the members are ready", || ready(client) == members).await;
        let before = scene(cluster, client).await;
        let brought = window().await;
        match brought {
            Some(brought) if before == scene(cluster, client).await => return brought,
            _ => println!("the window was disturbed: again"),
        }
    }
    panic!("there was no calm window");
}

/// What a window brings in which there was no election.
pub async fn without_election<T>(cluster: &Cluster, window: impl AsyncFn() -> T) -> T {
    for _ in 0..TRIES {
        let before = cluster.term().await;
        let brought = window().await;
        if cluster.term().await == before {
            return brought;
        }
        println!("there was an election: again");
        cluster.wait_healthy().await;
    }
    panic!("there was no window without an election");
}
