//! A self-healing session while members, links and proxies fail at random: its keys exist whenever it is up, and are
//! restored after the faults.
//!
//! `CHAOS_SECS` sets the duration, `CHAOS_SEED` the seed, which the test prints.

use std::time::Duration;

use actix_etcd::{Client, recipes::session::SessionEvent};
use serde_json::{Value, json};
use testbed::{Chaos, ChaosKind, ChaosPath, Cluster, PathKind, decode, encode, number};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;

use crate::support::{
    node_links::{NodeLinks, cut_links_randomly},
    session_keys::{KeyCheck, KeyLeases, SessionKeys},
    wait::until_async,
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(4);
/// Shorter than the time that a lease has left between renewals. A leader that is frozen for longer may revoke a renewed
/// lease as expired when it is thawed, and no client can know in time.
const LONGEST_FAULT: Duration = Duration::from_secs(2);

/// Reads the session's keys from one member, bypassing the links and proxies.
async fn read_keys(cluster: &Cluster, member: usize) -> Option<KeyLeases> {
    let range = json!({"key": encode("s/"), "range_end": encode("s0")});
    let read = cluster.api(member, "/v3/kv/range", range);
    let response = timeout(SECOND / 2, read).await.ok()?.ok()?;
    let kvs = response["kvs"].as_array().cloned().unwrap_or_default();
    let key_and_lease = |kv: &Value| {
        let key = String::from_utf8(decode(&kv["key"])).unwrap();
        (key, number(&kv["lease"]))
    };
    Some(kvs.iter().map(key_and_lease).collect())
}

/// Checks the keys until `duration` has passed. Returns the number of checks in which the keys existed.
async fn check_repeatedly(keys: &SessionKeys, cluster: &Cluster, duration: Duration) -> usize {
    let end = Instant::now() + duration;
    let mut present = 0;
    for member in (0..cluster.len()).cycle() {
        if Instant::now() > end {
            break;
        }
        match keys.check(async || read_keys(cluster, member).await).await {
            KeyCheck::Present => present += 1,
            KeyCheck::NotUp => {}
            KeyCheck::Missing(found) => {
                let lease = keys.session.lease();
                panic!("the session is up with lease {lease:?}, but only {found:?} exist");
            }
        }
        sleep(SECOND / 50).await;
    }
    present
}

async fn check_session(path: PathKind) {
    let cluster = Cluster::start(3).await;
    let path = ChaosPath::open(path, &cluster).await;
    let links = [NodeLinks::to(&path.endpoints())];
    let etcd = Client::connect(links[0].endpoints()).await.unwrap();
    let keys = SessionKeys::open(&etcd, TTL, "s/").await;
    let mut events = keys.session.events();
    let counting = tokio::spawn(async move {
        let (mut at_risk, mut healed) = (0, 0);
        while let Some(event) = events.next().await {
            match event {
                SessionEvent::AtRisk { .. } => at_risk += 1,
                SessionEvent::Healed { .. } => healed += 1,
                _ => {}
            }
        }
        (at_risk, healed)
    });
    let chaos = Chaos::from_env(&format!("session, {}", path.kind().name()))
        .fault_duration(SECOND / 5, LONGEST_FAULT);
    let (faults, cuts, checks) = tokio::join!(
        chaos.run_through(&path, &cluster, &ChaosKind::ALL),
        cut_links_randomly(&links, chaos.seed(), chaos.duration(), TTL),
        check_repeatedly(&keys, &cluster, chaos.duration() + TTL),
    );
    until_async("the keys are bound to the session's lease", async || {
        let found = read_keys(&cluster, 0).await.unwrap_or_default();
        let lease = keys.session.lease();
        lease.is_some_and(|lease| keys.are_bound_to(lease, &found))
    })
    .await;
    until_async("the cluster has no other lease", async || {
        let leases = etcd.leases().await.map(|all| all.leases);
        leases.ok() == keys.session.lease().map(|lease| vec![lease])
    })
    .await;
    keys.session.close().await.unwrap();
    let (at_risk, healed) = counting.await.unwrap();
    println!(
        "{faults}, {cuts} cuts, {at_risk} times at risk, {healed} times healed, {checks} checks of the keys, \
         0 missing keys"
    );
    assert!(checks > 0, "the keys were never checked");
}

#[tokio::test]
async fn session_keys_exist_during_random_faults() {
    check_session(PathKind::Direct).await;
}

#[tokio::test]
async fn session_keys_exist_through_tcp_balancer() {
    check_session(PathKind::TcpBalancer).await;
}

#[tokio::test]
async fn session_keys_exist_through_grpc_proxies() {
    check_session(PathKind::GrpcProxy).await;
}
