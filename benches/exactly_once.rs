//! Measures what a marker costs: `cargo bench --bench exactly_once`.
//!
//! | part | measures | target, × a plain put |
//! |---|---|---|
//! | `put` | a plain put | |
//! | `put, exactly once` | the same put with a marker | median ≤ 1.3 |
//! | `create without marker` | a plain transaction with one condition | none |
//! | `create` | the same transaction with a marker | none |
//!
//! One caller, and 16 callers at once. The parts alternate, put by put, so that all meet the same load. Three members on
//! this machine, whose latency is mostly that of the disk. `ROUNDS` changes the number of measurements.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench panics on failure"
)]

use std::{
    env,
    time::{Duration, Instant},
};

use actix_etcd::Client;
use testbed::Cluster;
use tokio::task::JoinSet;

const TARGET: f64 = 1.3;
const PARTS: [&str; 4] = [
    "put",
    "put, exactly once",
    "create without marker",
    "create",
];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let rounds = env::var("ROUNDS").map_or(1000, |rounds| rounds.parse().expect("a number"));
    let cluster = Cluster::start(3).await;
    // Bypasses the proxies, which run in this process.
    let etcd = Client::connect(cluster.direct_endpoints())
        .await
        .expect("connect to a healthy cluster");
    let mut worst = 0_f64;
    println!("| callers | part | median | 90 % | × put |\n|---|---|---|---|---|");
    for callers in [1, 16] {
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            tasks.spawn(measure(etcd.clone(), caller, rounds));
        }
        let mut times: [Vec<Duration>; 4] = Default::default();
        while let Some(measured) = tasks.join_next().await {
            let measured = measured.expect("a caller panicked");
            for (all, part) in times.iter_mut().zip(measured) {
                all.extend(part);
            }
        }
        let medians = times.each_mut().map(|times| {
            times.sort();
            times[times.len() / 2]
        });
        for (part, name) in PARTS.iter().enumerate() {
            let ratio = medians[part].as_secs_f64() / medians[0].as_secs_f64();
            let slow = times[part][times[part].len() * 9 / 10];
            println!(
                "| {callers} | {name} | {:.0?} | {slow:.0?} | {ratio:.2} |",
                medians[part]
            );
            if part == 1 {
                worst = worst.max(ratio);
            }
        }
    }
    etcd.shutdown().await;
    assert!(
        worst <= TARGET,
        "a put with a marker took {worst:.2} × a plain put; the target is {TARGET}"
    );
}

/// Returns the latencies of each part.
async fn measure(etcd: Client, caller: usize, rounds: usize) -> [Vec<Duration>; 4] {
    let mut times: [Vec<Duration>; 4] = Default::default();
    // Creates the slot.
    etcd.put("first", "v").exactly_once().await.expect("put");
    for round in 0..rounds {
        let key = format!("{caller}/{round}");
        for (part, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            match part {
                0 => drop(etcd.put(&key, "v").await.expect("put")),
                1 => drop(etcd.put(&key, "v").exactly_once().await.expect("put")),
                2 => {
                    let create = etcd.create(format!("{key}/plain"), "v");
                    drop(create.without_marker().await.expect("create"));
                }
                _ => drop(
                    etcd.create(format!("{key}/marked"), "v")
                        .await
                        .expect("create"),
                ),
            }
            times.push(start.elapsed());
        }
    }
    times
}
