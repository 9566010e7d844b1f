//! Counts the status requests of a client with 100 endpoints that lead to three members.

use std::time::{Duration, Instant};

use actix_etcd::Client;
use testbed::{Cluster, Fault, TcpProxy};
use tokio::time::sleep;

const ENDPOINTS: usize = 100;
const MEASURED: Duration = Duration::from_secs(10);
/// Delay of the links in each direction: calls take 300 ms.
const DELAY: Duration = Duration::from_millis(150);
const CALLERS: usize = 8;

/// Measures and prints the row.
pub async fn run() {
    let cluster = Cluster::start(3).await;
    let members = cluster.members();
    let links: Vec<TcpProxy> = (0..ENDPOINTS)
        .map(|number| TcpProxy::to_port(members[number % 3].client_port()))
        .collect();
    let endpoints = links
        .iter()
        .map(|link| format!("http://{}", link.address()));
    let started = Instant::now();
    let client = Client::connect(endpoints).await;
    let client = client.expect("connect to a healthy cluster");
    let connected = started.elapsed();
    client
        .put("k", "v")
        .await
        .expect("a put to a healthy cluster");
    sleep(Duration::from_secs(3)).await;
    let idle = status_rate(&cluster, sleep(MEASURED)).await;
    let busy = status_rate(&cluster, put_for(&client, MEASURED)).await;
    for link in &links {
        link.link().set(Fault::Delay(DELAY));
    }
    let slow = status_rate(&cluster, put_for(&client, MEASURED)).await;
    println!("\n### {ENDPOINTS} endpoints\n");
    println!("| | connect | status requests/s, idle | with load | with load, 300 ms per call |");
    println!("|---|---|---|---|---|");
    println!(
        "| {ENDPOINTS} endpoints, 3 members | {:.2} s | {idle:.1} | {busy:.1} | {slow:.1} |",
        connected.as_secs_f64()
    );
}

/// Returns the number of status requests per second at all members while `work` runs.
async fn status_rate(cluster: &Cluster, work: impl Future<Output = ()>) -> f64 {
    let (before, started) = (status_count(cluster).await, Instant::now());
    work.await;
    let elapsed = started.elapsed().as_secs_f64();
    (status_count(cluster).await - before) / elapsed
}

async fn status_count(cluster: &Cluster) -> f64 {
    let mut sum = 0.0;
    for member in cluster.members() {
        let name = r#"grpc_server_started_total{grpc_method="Status"}"#;
        sum += member.metric(name).await.unwrap_or_default();
    }
    sum
}

/// Sends puts from several tasks, without pauses.
async fn put_for(client: &Client, duration: Duration) {
    let end = Instant::now() + duration;
    let put = |_| {
        let client = client.clone();
        tokio::spawn(async move {
            while Instant::now() < end {
                let _ = client.put("k", "v").await;
            }
        })
    };
    let tasks: Vec<_> = (0..CALLERS).map(put).collect();
    for task in tasks {
        task.await.expect("a caller does not panic");
    }
}
