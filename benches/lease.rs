//! Measures the cost and the reliability of kept leases: `cargo bench --bench lease [-- faults|many|blocked]`.
//!
//! | part | measures | target |
//! |---|---|---|
//! | `faults` | a lease of 5 s during each fault of the failover bench, on one member at a time | kept during all |
//! | `many` | 10,000 leases of 10 s on one client for 60 s | none lost; per lease ≤ 3 KiB; per keepalive ≤ 6.1 µs of CPU |
//! | `blocked` | an application that blocks its thread for 20 s | a lease of 5 s is kept |
//!
//! The CPU time is that of the client's thread, which sends all keepalives; the testbed's proxies run in the same
//! process. `LEASES` and `SECONDS` change the size of `many`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::unchecked_time_subtraction,
    reason = "a bench panics on failure, and its figures are rounded"
)]

#[expect(dead_code, reason = "only the failover bench uses the bounds")]
#[path = "failover/faults.rs"]
mod faults;
#[path = "failover/member_fault.rs"]
mod member_fault;

use std::{
    env, fs,
    time::{Duration, Instant},
};

use actix_etcd::{Client, Lease, lease::LeaseEvent};
use faults::ClusterFault;
use member_fault::MemberFault;
use testbed::Cluster;
use tokio_stream::StreamExt;

/// The Go client 3.5.30, measured with 3,000 leases for 20 s: 0.22 s of CPU for 18,000 keepalives.
const GO_MICROS: f64 = 12.2;
const GO_KIB: f64 = 8.5;

/// Part of the bench that can run separately.
#[derive(Clone, Copy)]
enum Part {
    Many,
    Blocked,
    Faults,
}

impl Part {
    const ALL: [Self; 3] = [Self::Many, Self::Blocked, Self::Faults];

    fn name(self) -> &'static str {
        match self {
            Self::Many => "many",
            Self::Blocked => "blocked",
            Self::Faults => "faults",
        }
    }

    async fn meets_target(self) -> bool {
        match self {
            Self::Many => many().await,
            Self::Blocked => blocked().await,
            Self::Faults => kept_during_faults().await,
        }
    }
}

fn main() {
    let parts: Vec<String> = env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let selected = |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("start the runtime");
    let mut all_met = true;
    for part in Part::ALL {
        if selected(part.name()) {
            all_met &= runtime.block_on(part.meets_target());
        }
    }
    assert!(all_met, "a target was missed");
}

async fn connect(cluster: &Cluster) -> Client {
    // Bypasses the proxies, which run in this process.
    Client::connect(cluster.direct_endpoints())
        .await
        .expect("connect to a healthy cluster")
}

async fn many() -> bool {
    let count: usize = env_number("LEASES", 10_000);
    let seconds: u64 = env_number("SECONDS", 60);
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let warmup = etcd
        .lease(Duration::from_secs(10))
        .keep_alive()
        .await
        .expect("grant a lease");
    let before = rss_kib();
    let granting = Instant::now();
    let mut tasks = Vec::new();
    let mut leases = Vec::with_capacity(count);
    for part in 0..64 {
        let etcd = etcd.clone();
        let share = count / 64 + usize::from(part < count % 64);
        tasks.push(tokio::spawn(async move {
            let mut leases = Vec::with_capacity(share);
            for _ in 0..share {
                let grant = etcd.lease(Duration::from_secs(10)).keep_alive();
                leases.push(
                    grant
                        .timeout(Duration::from_secs(60))
                        .await
                        .expect("grant a lease"),
                );
            }
            leases
        }));
    }
    for task in tasks {
        leases.extend(task.await.expect("no panic while granting"));
    }
    println!("{count} leases granted in {:.1?}", granting.elapsed());
    // The first keepalives allocate all buffers.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let kib_per_lease = (rss_kib() - before) as f64 / count as f64;
    let (cpu, renewed) = (client_cpu(), keepalives(&cluster).await);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let cpu = client_cpu() - cpu;
    let renewed = keepalives(&cluster).await - renewed;
    let lost = leases
        .iter()
        .filter(|lease| lease.remaining().is_zero())
        .count();
    let existing = etcd.leases().await.expect("list the leases").leases.len();
    let micros = cpu.as_secs_f64() * 1e6 / renewed;
    let rate = renewed / seconds as f64;
    let required = count as f64 * 3.0 / 10.0;
    println!("{:<34}{:>12}{:>12}", "", "actix-etcd", "Go 3.5.30");
    println!(
        "{:<34}{lost:>12}{:>12}",
        "lost, of 10,000 (Go: in 20 s)", 9_457
    );
    println!("{:<34}{kib_per_lease:>12.2}{GO_KIB:>12.2}", "KiB per lease");
    println!(
        "{:<34}{micros:>12.2}{GO_MICROS:>12.2}",
        "µs of CPU per keepalive"
    );
    println!("{:<34}{rate:>12.0}", "keepalives per second");
    println!("{:<34}{required:>12.0}", "required (one per TTL/3)");
    println!("{:<34}{:>12.2}", "CPU time in seconds", cpu.as_secs_f64());
    drop(warmup);
    lost == 0
        && existing > count
        && kib_per_lease <= 3.0
        && micros <= GO_MICROS / 2.0
        && rate <= required * 1.02
}

async fn blocked() -> bool {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let lease = etcd
        .lease(Duration::from_secs(5))
        .keep_alive()
        .await
        .expect("grant a lease");
    std::thread::sleep(Duration::from_secs(20));
    let kept = exists(&etcd, &lease).await && !lease.remaining().is_zero();
    println!(
        "application blocks its thread for 20 s: lease {}",
        kept_or_lost(kept)
    );
    kept
}

async fn kept_during_faults() -> bool {
    let all = [
        ClusterFault::Member(MemberFault::Kill),
        ClusterFault::Member(MemberFault::Stop),
        ClusterFault::Member(MemberFault::Freeze),
        ClusterFault::Member(MemberFault::Isolate),
        ClusterFault::Member(MemberFault::Reset),
        ClusterFault::Down,
    ];
    let mut all_kept = true;
    println!(
        "lease of 5 s during each fault (Go 3.5.30 loses it in 3 to 4 of 6, etcd-client 0.21 in 4 to 5)"
    );
    for fault in all {
        let cluster = Cluster::start(3).await;
        let etcd = Client::connect(cluster.endpoints())
            .await
            .expect("connect to a healthy cluster");
        let lease = etcd
            .lease(Duration::from_secs(5))
            .keep_alive()
            .await
            .expect("grant a lease");
        let mut events = lease.events();
        let at_risk = tokio::spawn(async move {
            let mut at_risk = 0;
            while let Some(event) = events.next().await {
                at_risk += usize::from(matches!(event, LeaseEvent::AtRisk { .. }));
            }
            at_risk
        });
        for member in 0..if fault.affects_all_members() { 1 } else { 3 } {
            fault.inject(&cluster, member).await;
            cluster.wait_healthy().await;
        }
        let kept = exists(&etcd, &lease).await && !lease.remaining().is_zero();
        drop(lease);
        let at_risk = at_risk.await.expect("no panic while counting");
        println!(
            "  {:<20} {} (at risk {at_risk} times)",
            fault.describe(),
            kept_or_lost(kept)
        );
        all_kept &= kept;
    }
    all_kept
}

async fn exists(etcd: &Client, lease: &Lease) -> bool {
    let response = etcd
        .time_to_live(lease)
        .timeout(Duration::from_secs(30))
        .await;
    response.is_ok_and(|lease| lease.remaining.is_some())
}

fn kept_or_lost(kept: bool) -> &'static str {
    if kept { "kept" } else { "LOST" }
}

fn env_number<T: std::str::FromStr>(name: &str, default: T) -> T {
    let value = env::var(name).ok().and_then(|text| text.parse().ok());
    value.unwrap_or(default)
}

/// Returns the number of keepalives that the members received so far.
async fn keepalives(cluster: &Cluster) -> f64 {
    let mut sum = 0.0;
    for member in cluster.members() {
        let name = "grpc_server_msg_received_total{grpc_method=\"LeaseKeepAlive\"}";
        sum += member.metric(name).await.unwrap_or(0.0);
    }
    sum
}

fn rss_kib() -> i64 {
    let status = fs::read_to_string("/proc/self/status").expect("procfs of Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let text = line.and_then(|line| line.split_whitespace().next());
    text.and_then(|text| text.parse().ok())
        .expect("VmRSS in KiB")
}

/// Returns the CPU time that the client threads used so far.
fn client_cpu() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs of Linux");
    let mut nanos = 0;
    for task in tasks.flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.trim() == "actix-etcd" {
            let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let thread_nanos = stat
                .split_whitespace()
                .next()
                .and_then(|text| text.parse::<u64>().ok());
            nanos += thread_nanos.unwrap_or(0);
        }
    }
    Duration::from_nanos(nanos)
}
