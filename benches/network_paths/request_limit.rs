//! Measures what a proxy costs that ends each connection after 100 requests.

use std::time::{Duration, Instant};

use actix_etcd::Client;
use testbed::{Cluster, L7Proxy};

const REQUESTS_PER_CONNECTION: usize = 100;
const ROUNDS: u8 = 5;
const MEASURED: Duration = Duration::from_secs(1);
const CALLERS: usize = 16;

/// Measures and prints the row.
pub async fn run() {
    let cluster = Cluster::start(1).await;
    let (unlimited, limited) = (
        L7Proxy::start(&cluster).await,
        L7Proxy::start(&cluster).await,
    );
    limited.set_max_requests(REQUESTS_PER_CONNECTION);
    let mut rates = [0.0, 0.0];
    for _ in 0..ROUNDS {
        for (proxy, rate) in [&unlimited, &limited].into_iter().zip(&mut rates) {
            *rate += gets_per_second(proxy).await / f64::from(ROUNDS);
        }
    }
    let [without, with] = rates;
    println!("\n### {REQUESTS_PER_CONNECTION} requests per connection\n");
    println!("| gets/s without limit | with limit | ratio | connections ended |");
    println!("|---|---|---|---|");
    println!(
        "| {without:.0} | {with:.0} | {:.2} | {} |",
        with / without,
        limited.go_aways()
    );
}

async fn gets_per_second(proxy: &L7Proxy) -> f64 {
    let client = Client::connect([proxy.endpoint()]).await;
    let client = client.expect("connect to a healthy cluster");
    let (started, end) = (Instant::now(), Instant::now() + MEASURED);
    let get = |_| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut gets = 0_u32;
            while Instant::now() < end {
                client.get("k").await.expect("a get to a healthy cluster");
                gets += 1;
            }
            gets
        })
    };
    let tasks: Vec<_> = (0..CALLERS).map(get).collect();
    let mut gets = 0;
    for task in tasks {
        gets += task.await.expect("a caller does not panic");
    }
    f64::from(gets) / started.elapsed().as_secs_f64()
}
