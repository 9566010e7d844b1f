//! What keeping leases costs and what it survives: `cargo bench --bench lease [-- faults|many|blocked]`.
//!
//! | part | asks | must |
//! |---|---|---|
//! | `faults` | a lease of 5 s through each fault of the failover bench, a member after the other | it lives through all six |
//! | `many` | 10,000 leases of 10 s on one client for 60 s | none lost, ≤ 3 KiB each, ≤ 6.1 µs CPU a keepalive |
//! | `blocked` | an application that blocks its thread for 20 s | a lease of 5 s is kept |
//!
//! The CPU is that of the client's own thread, where all keeping happens: the testbed's proxies share the process.
//! `LEASES` and `SECONDS` change the size of `many`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::unchecked_time_subtraction,
    reason = "a bench that cannot run says so, and its figures are rounded anyway"
)]

#[expect(dead_code, reason = "what a call may cost is asked by that bench only")]
#[path = "failover/faults.rs"]
mod faults;

use std::{
    env, fs,
    time::{Duration, Instant},
};

use actix_etcd::{Client, Lease, lease::LeaseEvent};
use faults::Fault;
use testbed::Cluster;
use tokio_stream::StreamExt;

/// The Go client 3.5.30, measured with 3,000 leases for 20 s: 0.22 s of CPU for 18,000 keepalives.
const GO_MICROS: f64 = 12.2;
const GO_KIB: f64 = 8.5;

/// What can be measured by itself.
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

    async fn passes(self) -> bool {
        match self {
            Self::Many => many().await,
            Self::Blocked => blocked().await,
            Self::Faults => lives_through_faults().await,
        }
    }
}

fn main() {
    let parts: Vec<String> = env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|asked| asked == part);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be built");
    let mut passed = true;
    for part in Part::ALL {
        if wanted(part.name()) {
            passed &= runtime.block_on(part.passes());
        }
    }
    assert!(passed, "a target is missed");
}

async fn connect(cluster: &Cluster) -> Client {
    // Past the proxies, which are part of this process.
    Client::connect(cluster.direct_endpoints())
        .await
        .expect("a healthy cluster")
}

async fn many() -> bool {
    let count: usize = number("LEASES", 10_000);
    let seconds: u64 = number("SECONDS", 60);
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let warm = etcd
        .lease(Duration::from_secs(10))
        .keep_alive()
        .await
        .expect("a lease");
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
                        .expect("a lease"),
                );
            }
            leases
        }));
    }
    for task in tasks {
        leases.extend(task.await.expect("grants do not panic"));
    }
    println!("{count} leases granted in {:.1?}", granting.elapsed());
    // The first round of keepalives fills every buffer.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let grown = (rss_kib() - before) as f64 / count as f64;
    let (cpu, renewed) = (client_cpu(), keepalives(&cluster).await);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let cpu = client_cpu() - cpu;
    let renewed = keepalives(&cluster).await - renewed;
    let lost = leases
        .iter()
        .filter(|lease| lease.remaining().is_zero())
        .count();
    let there = etcd.leases().await.expect("a list").leases.len();
    let micros = cpu.as_secs_f64() * 1e6 / renewed;
    let rate = renewed / seconds as f64;
    let needed = count as f64 * 3.0 / 10.0;
    println!("{:<34}{:>12}{:>12}", "", "actix-etcd", "Go 3.5.30");
    println!(
        "{:<34}{lost:>12}{:>12}",
        "lost, of 10,000 (Go: in 20 s)", 9_457
    );
    println!("{:<34}{grown:>12.2}{GO_KIB:>12.2}", "KiB a lease");
    println!(
        "{:<34}{micros:>12.2}{GO_MICROS:>12.2}",
        "µs of CPU a keepalive"
    );
    println!("{:<34}{rate:>12.0}", "keepalives a second");
    println!("{:<34}{needed:>12.0}", "needed (TTL/3)");
    println!("{:<34}{:>12.2}", "seconds of CPU", cpu.as_secs_f64());
    drop(warm);
    lost == 0 && there > count && grown <= 3.0 && micros <= GO_MICROS / 2.0 && rate <= needed * 1.02
}

async fn blocked() -> bool {
    let cluster = Cluster::start(3).await;
    let etcd = connect(&cluster).await;
    let lease = etcd
        .lease(Duration::from_secs(5))
        .keep_alive()
        .await
        .expect("a lease");
    std::thread::sleep(Duration::from_secs(20));
    let kept = is_there(&etcd, &lease).await && !lease.remaining().is_zero();
    println!(
        "an application that blocks its thread for 20 s: {}",
        verdict(kept)
    );
    kept
}

async fn lives_through_faults() -> bool {
    let all = [
        Fault::Kill,
        Fault::Stop,
        Fault::Freeze,
        Fault::Isolate,
        Fault::Reset,
        Fault::Down,
    ];
    let mut lived = true;
    println!("a lease of 5 s (Go 3.5.30 loses it in 3 to 4 of 6, etcd-client 0.21 in 4 to 5)");
    for fault in all {
        let cluster = Cluster::start(3).await;
        let etcd = Client::connect(cluster.endpoints())
            .await
            .expect("a healthy cluster");
        let lease = etcd
            .lease(Duration::from_secs(5))
            .keep_alive()
            .await
            .expect("a lease");
        let mut events = lease.events();
        let at_risk = tokio::spawn(async move {
            let mut at_risk = 0;
            while let Some(event) = events.next().await {
                at_risk += usize::from(matches!(event, LeaseEvent::AtRisk { .. }));
            }
            at_risk
        });
        for member in 0..if fault.is_for_all() { 1 } else { 3 } {
            fault.work(&cluster, member).await;
            cluster.wait_healthy().await;
        }
        let kept = is_there(&etcd, &lease).await && !lease.remaining().is_zero();
        drop(lease);
        let at_risk = at_risk.await.expect("counting does not panic");
        println!(
            "  {:<20} {} (at risk {at_risk} times)",
            fault.describe(),
            verdict(kept)
        );
        lived &= kept;
    }
    lived
}

async fn is_there(etcd: &Client, lease: &Lease) -> bool {
    let left = etcd
        .time_to_live(lease)
        .timeout(Duration::from_secs(30))
        .await;
    left.is_ok_and(|left| left.remaining.is_some())
}

fn verdict(kept: bool) -> &'static str {
    if kept { "kept" } else { "LOST" }
}

fn number<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    let given = env::var(name).ok().and_then(|text| text.parse().ok());
    given.unwrap_or(otherwise)
}

/// The keepalives that clients sent to the members so far.
async fn keepalives(cluster: &Cluster) -> f64 {
    let mut sum = 0.0;
    for member in cluster.members() {
        let name = "grpc_server_msg_received_total{grpc_method=\"LeaseKeepAlive\"}";
        sum += member.metric(name).await.unwrap_or(0.0);
    }
    sum
}

fn rss_kib() -> i64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let text = line.and_then(|line| line.split_whitespace().next());
    text.and_then(|text| text.parse().ok())
        .expect("VmRSS in KiB")
}

/// The CPU time of the threads of clients so far.
fn client_cpu() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let mut nanos = 0;
    for task in tasks.flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.trim() == "actix-etcd" {
            let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let ran = stat
                .split_whitespace()
                .next()
                .and_then(|text| text.parse::<u64>().ok());
            nanos += ran.unwrap_or(0);
        }
    }
    Duration::from_nanos(nanos)
}
