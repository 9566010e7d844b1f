//! Retries do not become a storm.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use actix_etcd::{Client, proto, retry::BudgetLimits};
use prost::Message;
use testbed::{Fault, Reply, ScriptedServer};

use crate::support::scripted_put::RANGE;

const CALLS: usize = 1000;
const SECOND: Duration = Duration::from_secs(1);

/// Calls that all end with an error.
async fn fail(etcd: &Client) {
    let calls: Vec<_> = (0..CALLS)
        .map(|n| tokio::spawn(etcd.get(format!("k{n}")).into_future()))
        .collect();
    for call in calls {
        assert!(call.await.unwrap().is_err());
    }
}

/// The most of them that fell into any second.
fn most_in_a_second(mut times: Vec<Instant>) -> usize {
    times.sort();
    let within = |first: &Instant| {
        let end = *first + SECOND;
        times.partition_point(|time| *time < end) - times.partition_point(|time| time < first)
    };
    times.iter().map(within).max().unwrap_or(0)
}

/// When each request came that was not the first of its call.
fn retries(servers: &[ScriptedServer]) -> Vec<Instant> {
    let mut calls: Vec<_> = servers
        .iter()
        .flat_map(|server| server.calls(RANGE))
        .collect();
    calls.sort_by_key(|call| call.at);
    let mut first = HashSet::new();
    calls.retain(|call| {
        let request = proto::RangeRequest::decode(call.body.clone()).unwrap();
        !first.insert(request.key)
    });
    calls.into_iter().map(|call| call.at).collect()
}

/// A thousand calls at once against three members that answer like this. Gives the most retries within a second.
async fn storm(answer: fn() -> Reply) -> usize {
    let servers = [
        ScriptedServer::start().await,
        ScriptedServer::start().await,
        ScriptedServer::start().await,
    ];
    for server in &servers {
        server.on(RANGE, move |_| answer());
    }
    let mut limits = BudgetLimits::default();
    (limits.burst, limits.per_second) = (50, 100);
    let etcd = Client::builder(servers.iter().map(ScriptedServer::endpoint))
        .request_timeout(4 * SECOND)
        .retry_budget(limits)
        .connect()
        .await
        .unwrap();
    let started = Instant::now();
    fail(&etcd).await;
    let elapsed = started.elapsed().as_secs_f64();
    let retries = retries(&servers);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let count = retries.len() as f64;
    let allowed = |seconds: f64| f64::from(limits.burst) + f64::from(limits.per_second) * seconds;
    assert!(
        count <= allowed(elapsed),
        "{count} retries in {elapsed} s, where {} are allowed",
        allowed(elapsed)
    );
    // A second and a half: what was sent in that time may be seen within one, by servers that were held up.
    let most = most_in_a_second(retries);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let fits = most as f64 <= allowed(1.5);
    assert!(fits, "{most} retries within a second");
    most
}

#[tokio::test]
async fn rejected_calls_stay_within_retry_budget() {
    let most = storm(|| Reply::status(14, "etcdserver: request timed out")).await;
    assert!(most > 50, "it does use its budget: {most} within a second");
}

#[tokio::test]
async fn calls_on_closed_connections_respect_retry_budget() {
    let most = storm(Reply::close_connection).await;
    assert!(most > 0, "it does try again");
}

#[tokio::test]
async fn calls_to_dead_cluster_open_few_connections() {
    let cluster = testbed::Cluster::start(3).await;
    let etcd = Client::builder(cluster.endpoints())
        .request_timeout(3 * SECOND)
        .connect()
        .await
        .unwrap();
    for member in cluster.members() {
        member.client_link().set(Fault::Reset);
    }
    let members = cluster.members();
    let dialled = || -> u64 {
        let each = members.iter();
        each.map(|member| member.client_link().accepted()).sum()
    };
    let calls = fail(&etcd);
    tokio::pin!(calls);
    let (mut dials, mut known) = (Vec::new(), dialled());
    loop {
        let over = tokio::select! {
            () = &mut calls => true,
            () = tokio::time::sleep(Duration::from_millis(20)) => false,
        };
        let now = dialled();
        dials.extend((known..now).map(|_| Instant::now()));
        known = now;
        if over {
            break;
        }
    }
    let most = most_in_a_second(dials);
    println!("{most} connections were tried within a second");
    assert!(most > 0, "it does try");
    assert!(
        most <= 3 * 20,
        "{most} connections were tried within a second"
    );
}
