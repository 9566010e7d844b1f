//! Retries do not become a storm.

use std::time::{Duration, Instant};

use actix_etcd::{Client, retry::BudgetLimits};
use testbed::{Reply, ScriptedServer};

#[tokio::test]
async fn a_thousand_calls_against_members_that_refuse_stay_within_the_budget() {
    let servers = [
        ScriptedServer::start().await,
        ScriptedServer::start().await,
        ScriptedServer::start().await,
    ];
    for server in &servers {
        server.on("/etcdserverpb.KV/Range", |_| {
            Reply::status(14, "etcdserver: request timed out")
        });
    }
    let limits = BudgetLimits::default();
    let etcd = Client::builder(servers.iter().map(ScriptedServer::endpoint))
        .request_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let started = Instant::now();
    let calls: Vec<_> = (0..1000)
        .map(|n| tokio::spawn(etcd.get(format!("k{n}")).into_future()))
        .collect();
    for call in calls {
        assert!(call.await.unwrap().is_err());
    }
    let elapsed = started.elapsed().as_secs_f64();
    let attempts: usize = servers
        .iter()
        .map(|server| server.count("/etcdserverpb.KV/Range"))
        .sum();
    let retries = attempts - 1000;
    let allowed = f64::from(limits.burst) + f64::from(limits.per_second) * elapsed;
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let retries = retries as f64;
    assert!(
        retries <= allowed,
        "{retries} retries in {elapsed} s, where {allowed} are allowed"
    );
    assert!(retries > 100.0, "it does retry");
}

#[tokio::test]
async fn a_thousand_calls_against_a_dead_cluster_dial_little() {
    let cluster = testbed::Cluster::start(3).await;
    let etcd = Client::builder(cluster.endpoints())
        .request_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    for member in cluster.members() {
        member.client_link().set(testbed::Fault::Reset);
    }
    let dialled = || {
        cluster
            .members()
            .iter()
            .map(|member| member.client_link().accepted())
            .sum::<u64>()
    };
    let before = dialled();
    let calls: Vec<_> = (0..1000)
        .map(|n| tokio::spawn(etcd.get(format!("k{n}")).into_future()))
        .collect();
    for call in calls {
        assert!(call.await.unwrap().is_err());
    }
    let dials = dialled() - before;
    assert!(dials <= 3 * 2 * 20, "{dials} connections were tried in 2 s");
}
