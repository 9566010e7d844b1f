//! Measures faults behind balancers, proxies and host names: path × fault × {put, get, watch, lease}.
//!
//! For each path, a new cluster of three members and one client in this process: four writers, two readers, a watch and
//! a lease. Each fault is injected for 4 s into the member that the client is connected to, once as a follower and once
//! as the leader. The *excess* is the longest gap between two successes (renewals of the lease, events of the watch)
//! minus the longest gap of the baseline in the same window, which writes directly to each member; the worse of the two
//! windows counts. Two more rows: five members with two down, and 100 endpoints.
//!
//! `cargo bench --bench network_paths` takes about ten minutes and prints Markdown tables. It fails if a write was
//! applied twice, if a failed write was applied although the error excludes that, if an acknowledged write is missing,
//! or if the watch missed or repeated a revision. These environment variables select less:
//! `PATHS=direct,tcp-balancer,grpc-proxy,l7-proxy,dns,five-members,many-endpoints,request-limit`,
//! `FAULTS=kill,stop,freeze,isolate,reset,down`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench panics on failure"
)]

#[path = "../failover/baseline.rs"]
mod baseline;
#[path = "../failover/clock.rs"]
mod clock;
#[path = "../failover/faults.rs"]
#[allow(dead_code, reason = "the bounds are those of the failover bench")]
mod faults;
mod load;
mod many_endpoints;
mod measure;
#[path = "../failover/member_fault.rs"]
mod member_fault;
mod outcomes;
mod report;
mod request_limit;

use std::{env, process::ExitCode, time::Duration};

use actix_etcd::Client;
use baseline::Baseline;
use clock::now;
use faults::ClusterFault;
use load::Load;
use measure::{Cell, Window};
use outcomes::Outcomes;
use testbed::{Cluster, HostsFile, NetworkPath, PathKind};
use tokio::time::sleep;

const FIVE_MEMBERS: &str = "five-members";
const MANY_ENDPOINTS: &str = "many-endpoints";
const REQUEST_LIMIT: &str = "request-limit";
/// Time for the client to settle after the leader has moved.
const SETTLE: Duration = Duration::from_secs(1);

/// Results of one path.
struct Run {
    path: String,
    /// Name of the fault and its measurements.
    cells: Vec<(String, Cell)>,
    outcomes: Outcomes,
}

fn main() -> ExitCode {
    let paths = list("PATHS").unwrap_or_else(|| {
        let kinds = PathKind::ALL.iter().map(|kind| kind.name());
        let all = kinds.chain([FIVE_MEMBERS, MANY_ENDPOINTS, REQUEST_LIMIT]);
        all.map(str::to_owned).collect()
    });
    let needs_hosts = paths.iter().any(|path| path == PathKind::Dns.name());
    if needs_hosts && HostsFile::of_this_process().is_none() && HostsFile::is_supported() {
        return run_with_hosts_file();
    }
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    runtime.block_on(run_all(&paths))
}

/// Runs this program again, in a process with host names of its own.
fn run_with_hosts_file() -> ExitCode {
    let hosts = HostsFile::new();
    let program = env::current_exe().expect("path of this program");
    let status = hosts
        .launcher()
        .arg(program)
        .args(env::args().skip(1))
        .status();
    let success = status.expect("start this program again").success();
    ExitCode::from(u8::from(!success))
}

async fn run_all(paths: &[String]) -> ExitCode {
    let faults: Vec<ClusterFault> = list("FAULTS")
        .unwrap_or_else(|| {
            let all = "kill,stop,freeze,isolate,reset,down";
            all.split(',').map(str::to_owned).collect()
        })
        .iter()
        .map(|name| ClusterFault::parse(name))
        .collect();
    let mut runs = Vec::new();
    for path in paths {
        let run = match path.as_str() {
            MANY_ENDPOINTS => {
                many_endpoints::run().await;
                continue;
            }
            REQUEST_LIMIT => {
                request_limit::run().await;
                continue;
            }
            FIVE_MEMBERS => run_five_members().await,
            "dns" if HostsFile::of_this_process().is_none() => {
                println!("\ndns: skipped, this machine allows no user namespaces");
                continue;
            }
            name => run_path(PathKind::parse(name), &faults).await,
        };
        report::print_run(&run);
        runs.push(run);
    }
    let paths: Vec<&Run> = runs.iter().filter(|run| run.path != FIVE_MEMBERS).collect();
    report::print_matrix(&paths);
    let correct = runs.iter().all(|run| run.outcomes.are_correct());
    ExitCode::from(u8::from(!correct))
}

/// Returns the words of a list in an environment variable, if it is set.
fn list(name: &str) -> Option<Vec<String>> {
    let text = env::var(name).ok()?;
    Some(text.split(',').map(|word| word.trim().to_owned()).collect())
}

async fn run_path(kind: PathKind, faults: &[ClusterFault]) -> Run {
    let cluster = Cluster::start(3).await;
    let mut path = NetworkPath::open(kind, &cluster).await;
    if let NetworkPath::L7Proxy(proxy) = &mut path {
        proxy.check_health_every(Duration::from_millis(500));
    }
    let baseline = Baseline::start(&cluster);
    let client = Client::connect(path.endpoints()).await;
    let load = Load::start(&client.expect("connect to a healthy cluster")).await;
    let mut windows = Vec::new();
    for fault in faults {
        let leadership: &[bool] = if fault.affects_all_members() {
            &[false]
        } else {
            &[false, true]
        };
        for as_leader in leadership {
            let target = choose_target(&cluster, *as_leader).await;
            let from = now();
            fault.inject(&cluster, target).await;
            windows.push((fault.describe().to_owned(), Window { from, until: now() }));
        }
    }
    finish(kind.name(), &cluster, baseline, load, windows).await
}

/// Chooses a member with a connection of the client, and makes it the leader or a follower.
async fn choose_target(cluster: &Cluster, as_leader: bool) -> usize {
    let members = cluster.members();
    let connected = members
        .iter()
        .position(|member| member.client_link().connections() > 0);
    let target = connected.unwrap_or(0);
    let leader = if as_leader {
        target
    } else {
        (target + 1) % members.len()
    };
    cluster.move_leader(leader).await;
    sleep(SETTLE).await;
    target
}

/// Kills the leader and freezes another member of five.
async fn run_five_members() -> Run {
    let cluster = Cluster::start(5).await;
    let baseline = Baseline::start(&cluster);
    let client = Client::connect(cluster.endpoints()).await;
    let load = Load::start(&client.expect("connect to a healthy cluster")).await;
    sleep(SETTLE).await;
    let leader = cluster.leader().await;
    let from = now();
    cluster.member(leader).kill();
    cluster.member((leader + 1) % 5).freeze();
    sleep(Duration::from_secs(5)).await;
    cluster.heal();
    cluster.start_all().await;
    sleep(Duration::from_secs(2)).await;
    let window = Window { from, until: now() };
    let windows = vec![("two of five down".to_owned(), window)];
    finish(FIVE_MEMBERS, &cluster, baseline, load, windows).await
}

async fn finish(
    path: &str,
    cluster: &Cluster,
    baseline: Baseline,
    load: Load,
    windows: Vec<(String, Window)>,
) -> Run {
    let baseline = baseline.stop().await;
    let records = load.stop().await;
    let mut cells: Vec<(String, Cell)> = Vec::new();
    for (fault, window) in windows {
        let cell = Cell::new(&window, &records, &baseline);
        match cells.iter_mut().find(|(name, _)| *name == fault) {
            Some((_, worst)) => worst.merge(&cell),
            None => cells.push((fault, cell)),
        }
    }
    let outcomes = Outcomes::new(&records, cluster).await;
    Run {
        path: path.to_owned(),
        cells,
        outcomes,
    }
}
