//! Kept leases while members, links and proxies fail at random.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use actix_etcd::Client;
use testbed::{
    Chaos, ChaosKind, ChaosPath, Cluster, PathKind,
    lease_validators::{LeaseRecord, OwnerEvent},
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::{lease_recorder::LeaseRecorder, skipped_check::report_skipped};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(6);
const LEASES: usize = 30;
/// Leases that are also probed on the servers. More probes would take the CPU from the client.
const PROBED_LEASES: usize = 2;
/// Longest fault. A gRPC proxy waits for a frozen member behind it, so that both proxies may be stuck until the fault
/// ends. A keepalive is due after a third of the TTL, so that a fault of another third costs no lease.
const LONGEST_FAULT: Duration = Duration::from_secs(2);

/// Longest outage that costs no lease: a lease may already be due for a renewal when the outage begins.
const LONGEST_OUTAGE: Duration = Duration::from_secs(3);

/// Prints since when and until when each lease was at risk.
fn print_risks(records: &[LeaseRecord]) {
    for (number, record) in records.iter().enumerate() {
        for pair in record.owner_events.windows(2) {
            if let [(at, OwnerEvent::AtRisk { .. }), (next_at, next)] = pair {
                println!("lease {number}: at risk from {at:.1?}, {next:?} at {next_at:.1?}");
            }
        }
    }
}

fn count(records: &[LeaseRecord], matches: impl Fn(&OwnerEvent) -> bool) -> usize {
    let has_event = |record: &&LeaseRecord| record.owner_events.iter().any(|(_, e)| matches(e));
    records.iter().filter(has_event).count()
}

/// Records when a path served requests about leases, by requests on connections of its own. A lease that cannot be
/// renewed for long is lost, whatever the client does.
struct PathMonitor {
    served: Arc<Mutex<Vec<Instant>>>,
    _requests: JoinSet<()>,
}

impl PathMonitor {
    async fn start(path: &ChaosPath) -> Self {
        let served = Arc::new(Mutex::new(vec![Instant::now()]));
        let mut requests = JoinSet::new();
        for endpoint in path.endpoints() {
            let etcd = Client::connect([endpoint]).await.unwrap();
            let lease = etcd.lease(100 * TTL).await.unwrap();
            let served = served.clone();
            requests.spawn(async move {
                loop {
                    let request = timeout(SECOND, lease.time_to_live()).await;
                    if matches!(request, Ok(Ok(_))) {
                        served.lock().unwrap().push(Instant::now());
                    }
                    sleep(SECOND / 10).await;
                }
            });
        }
        Self {
            served,
            _requests: requests,
        }
    }

    /// Returns the longest time so far in which no endpoint served a request.
    fn longest_outage(&self) -> Duration {
        let mut served = self.served.lock().unwrap().clone();
        served.push(Instant::now());
        served.sort();
        let gaps = served.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    }
}

async fn check_leases(path: PathKind) {
    let cluster = Cluster::start(3).await;
    let path = ChaosPath::open(path, &cluster).await;
    let etcd = Client::connect(path.endpoints()).await.unwrap();
    let (mut leases, mut recorders) = (Vec::new(), Vec::new());
    for n in 0..LEASES {
        let lease = etcd.lease(TTL).keep_alive().await.unwrap();
        let probed_on = (n < PROBED_LEASES).then_some(&cluster);
        recorders.push(LeaseRecorder::start(&lease, probed_on));
        leases.push(lease);
    }
    let monitor = PathMonitor::start(&path).await;
    let chaos = Chaos::from_env(&format!("lease, {}", path.kind().name()))
        .min_duration(TTL + SECOND)
        .fault_duration(SECOND / 5, LONGEST_FAULT);
    let faults = chaos.run_through(&path, &cluster, &ChaosKind::ALL).await;
    let records: Vec<_> = recorders.iter().map(LeaseRecorder::check).collect();
    print_risks(&records);
    let at_risk = count(&records, |event| matches!(event, OwnerEvent::AtRisk { .. }));
    let lost = count(&records, |event| matches!(event, OwnerEvent::Lost(_)));
    let outage = monitor.longest_outage();
    println!(
        "{faults}, {LEASES} leases, {at_risk} at risk, {lost} lost, longest outage {outage:.1?}"
    );
    if outage > LONGEST_OUTAGE {
        report_skipped("the machine was too slow to serve leases during the faults");
        return;
    }
    assert_eq!(lost, 0, "leases were lost");
    for (lease, recorder) in leases.iter().zip(&recorders) {
        recorder.check_alive().await;
        let on_server = lease.time_to_live().await.unwrap();
        assert!(on_server.remaining.is_some(), "{lease:?}");
    }
}

#[tokio::test]
async fn leases_survive_random_faults() {
    check_leases(PathKind::Direct).await;
}

#[tokio::test]
async fn leases_survive_faults_through_tcp_balancer() {
    check_leases(PathKind::TcpBalancer).await;
}

#[tokio::test]
async fn leases_survive_faults_through_grpc_proxies() {
    check_leases(PathKind::GrpcProxy).await;
}
