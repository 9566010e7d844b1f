//! Paths from clients to a cluster whose proxies fail at random, together with the members behind them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep, sleep_until};

use crate::chaos::{Chaos, ChaosKind, random_between};
use crate::cluster::Cluster;
use crate::grpc_proxy::GrpcProxy;
use crate::link::{Fault, Link};
use crate::network_path::PathKind;
use crate::runtime;
use crate::tcp_balancer::TcpBalancer;

/// Longest fault of a proxy without which clients cannot reach the cluster.
const LONGEST_OUTAGE: Duration = Duration::from_secs(1);
/// Makes the faults of the path independent of those of the members, which have the same seed.
const PATH_SEED: u64 = 0x0070_6174_6820_6b65;

/// Handle to a path with faults. Dropping the last handle closes the path, but not the cluster.
#[derive(Clone, Debug)]
pub struct ChaosPath {
    kind: PathKind,
    endpoints: Vec<String>,
    hops: Arc<Vec<Hop>>,
}

/// A proxy on the path.
#[derive(Debug)]
enum Hop {
    Balancer(TcpBalancer),
    Proxy(GrpcProxy),
}

#[derive(Clone, Copy, Debug)]
enum HopFault {
    /// SIGKILL; the proxy is restarted at the end of the fault.
    Kill,
    /// SIGSTOP; SIGCONT at the end of the fault.
    Freeze,
    /// Resets the connections of clients, once.
    Reset,
    /// Transfers no bytes between clients and the proxy.
    FreezeLink,
    /// Refuses connections of clients.
    Refuse,
}

/// Numbers of random faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCounts {
    /// Faults of members and of their links.
    pub members: usize,
    /// Faults of the proxies on the path.
    pub path: usize,
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} member faults, {} path faults",
            self.members, self.path
        )
    }
}

impl ChaosPath {
    /// Opens a path to all current members: direct, through one TCP balancer, or through two gRPC proxies, because one
    /// would be a single point of failure.
    pub async fn open(kind: PathKind, cluster: &Cluster) -> Self {
        let hops = match kind {
            PathKind::Direct => Vec::new(),
            PathKind::TcpBalancer => vec![Hop::Balancer(TcpBalancer::over(cluster))],
            PathKind::GrpcProxy => vec![
                Hop::Proxy(GrpcProxy::start(cluster).await),
                Hop::Proxy(GrpcProxy::start(cluster).await),
            ],
            PathKind::L7Proxy | PathKind::Dns => {
                panic!("there are no random faults for the path {}", kind.name())
            }
        };
        let endpoints = if hops.is_empty() {
            cluster.endpoints()
        } else {
            hops.iter().map(Hop::endpoint).collect()
        };
        Self {
            kind,
            endpoints,
            hops: Arc::new(hops),
        }
    }

    /// Returns the kind of the path.
    pub fn kind(&self) -> PathKind {
        self.kind
    }

    /// Returns the URLs that clients connect to.
    pub fn endpoints(&self) -> Vec<String> {
        self.endpoints.clone()
    }
}

impl Hop {
    fn endpoint(&self) -> String {
        match self {
            Self::Balancer(balancer) => balancer.endpoint(),
            Self::Proxy(proxy) => proxy.endpoint(),
        }
    }

    fn link(&self) -> &Link {
        match self {
            Self::Balancer(balancer) => balancer.link(),
            Self::Proxy(proxy) => proxy.link(),
        }
    }

    fn faults(&self) -> &'static [HopFault] {
        const LINK: &[HopFault] = &[HopFault::Reset, HopFault::FreezeLink, HopFault::Refuse];
        const ALL: &[HopFault] = &[
            HopFault::Kill,
            HopFault::Freeze,
            HopFault::Reset,
            HopFault::FreezeLink,
            HopFault::Refuse,
        ];
        match self {
            Self::Balancer(_) => LINK,
            Self::Proxy(_) => ALL,
        }
    }

    fn inject(&self, fault: HopFault) {
        match (fault, self) {
            (HopFault::Kill, Self::Proxy(proxy)) => proxy.kill(),
            (HopFault::Freeze, Self::Proxy(proxy)) => proxy.freeze(),
            (HopFault::FreezeLink, _) => self.link().set(Fault::Freeze),
            (HopFault::Refuse, _) => self.link().set(Fault::Refuse),
            (HopFault::Reset | HopFault::Kill | HopFault::Freeze, _) => self.link().reset_now(),
        }
    }

    async fn recover(&self) {
        self.link().heal();
        if let Self::Proxy(proxy) = self {
            proxy.thaw();
            proxy.launch().await;
        }
    }
}

impl Chaos {
    /// Like [`Chaos::run`], with faults of the proxies on the path at the same time, of one proxy at a time. Heals the
    /// path at the end.
    pub async fn run_through(
        &self,
        path: &ChaosPath,
        cluster: &Cluster,
        kinds: &[ChaosKind],
    ) -> FaultCounts {
        let (chaos, proxies) = (self.clone(), path.clone());
        let hop_faults = runtime::run(async move { chaos.inject_hop_faults(&proxies.hops).await });
        let (members, path) = tokio::join!(self.run(cluster, kinds), hop_faults);
        FaultCounts {
            members: members.len(),
            path,
        }
    }

    async fn inject_hop_faults(&self, hops: &[Hop]) -> usize {
        if hops.is_empty() {
            return 0;
        }
        let mut rng = Rng::with_seed(self.seed ^ PATH_SEED);
        let end = Instant::now() + self.duration;
        let longest = if hops.len() == 1 {
            self.fault_duration.1.min(LONGEST_OUTAGE)
        } else {
            self.fault_duration.1
        };
        let mut injected = 0;
        while Instant::now() < end {
            let index = rng.usize(..hops.len());
            let hop = &hops[index];
            let fault = hop.faults()[rng.usize(..hop.faults().len())];
            let duration = random_between(&mut rng, (self.fault_duration.0.min(longest), longest));
            self.print_fault(end, format_args!("{fault:?} on proxy {index}"), duration);
            hop.inject(fault);
            injected += 1;
            sleep_until((Instant::now() + duration).min(end)).await;
            hop.recover().await;
            sleep(random_between(&mut rng, self.pause_between_faults)).await;
        }
        injected
    }
}
