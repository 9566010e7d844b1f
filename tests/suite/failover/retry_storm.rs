//! Many failing calls do not cause a storm of retries or connections.

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

/// Makes all calls at once. All of them fail.
async fn make_failing_calls(etcd: &Client) {
    let calls: Vec<_> = (0..CALLS)
        .map(|n| tokio::spawn(etcd.get(format!("k{n}")).into_future()))
        .collect();
    for call in calls {
        assert!(call.await.unwrap().is_err());
    }
}

/// Returns the largest number of these times within any one second.
fn most_per_second(mut times: Vec<Instant>) -> usize {
    times.sort();
    let within = |first: &Instant| {
        let end = *first + SECOND;
        times.partition_point(|time| *time < end) - times.partition_point(|time| time < first)
    };
    times.iter().map(within).max().unwrap_or(0)
}

/// Returns the arrival times of all requests except the first of each call.
fn retry_times(servers: &[ScriptedServer]) -> Vec<Instant> {
    let mut calls: Vec<_> = servers
        .iter()
        .flat_map(|server| server.calls(RANGE))
        .collect();
    calls.sort_by_key(|call| call.at);
    let mut seen_keys = HashSet::new();
    calls.retain(|call| {
        let request = proto::RangeRequest::decode(call.body.clone()).unwrap();
        !seen_keys.insert(request.key)
    });
    calls.into_iter().map(|call| call.at).collect()
}

/// Makes the calls against three members that reply with `reply`, and checks the retries against the budget. Returns
/// the largest number of retries within one second.
async fn check_retry_budget(reply: fn() -> Reply) -> usize {
    let servers = [
        ScriptedServer::start().await,
        ScriptedServer::start().await,
        ScriptedServer::start().await,
    ];
    for server in &servers {
        server.on(RANGE, move |_| reply());
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
    make_failing_calls(&etcd).await;
    let elapsed = started.elapsed().as_secs_f64();
    let retries = retry_times(&servers);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let count = retries.len() as f64;
    let allowed = |seconds: f64| f64::from(limits.burst) + f64::from(limits.per_second) * seconds;
    assert!(
        count <= allowed(elapsed),
        "{count} retries in {elapsed} s; {} are allowed",
        allowed(elapsed)
    );
    // Delayed servers may receive within one second what the client sent in a second and a half.
    let most = most_per_second(retries);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let fits = most as f64 <= allowed(1.5);
    assert!(fits, "{most} retries within a second");
    most
}

#[tokio::test]
async fn rejected_calls_stay_within_retry_budget() {
    let most = check_retry_budget(|| Reply::status(14, "etcdserver: request timed out")).await;
    assert!(most > 50, "only {most} retries within a second");
}

#[tokio::test]
async fn calls_on_closed_connections_respect_retry_budget() {
    let most = check_retry_budget(Reply::close_connection).await;
    assert!(most > 0, "no retry");
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
    let accepted = || -> u64 {
        let each = members.iter();
        each.map(|member| member.client_link().accepted()).sum()
    };
    let calls = make_failing_calls(&etcd);
    tokio::pin!(calls);
    let (mut connections, mut counted) = (Vec::new(), accepted());
    loop {
        let finished = tokio::select! {
            () = &mut calls => true,
            () = tokio::time::sleep(Duration::from_millis(20)) => false,
        };
        let now = accepted();
        connections.extend((counted..now).map(|_| Instant::now()));
        counted = now;
        if finished {
            break;
        }
    }
    let most = most_per_second(connections);
    println!("{most} connections within a second");
    assert!(most > 0, "no connection attempt");
    assert!(most <= 3 * 20, "{most} connections within a second");
}
