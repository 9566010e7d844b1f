//! One's own ways to the members of a cluster: cut off, one is alone, and the others are not.

use std::time::Duration;

use testbed::{Cluster, Fault, TcpProxy};
use tokio::time::Instant;

use crate::support::wait::hold;

/// The ways of one client to all members, in front of the ways all clients share: both can fail.
pub struct OwnLinks(Vec<TcpProxy>);

impl OwnLinks {
    pub fn to(cluster: &Cluster) -> Self {
        let behind = |endpoint: String| {
            let port = endpoint.rsplit(':').next().map(str::parse);
            TcpProxy::to_port(port.unwrap().unwrap())
        };
        Self(cluster.endpoints().into_iter().map(behind).collect())
    }

    pub fn endpoints(&self) -> Vec<String> {
        let url = |link: &TcpProxy| format!("http://{}", link.address());
        self.0.iter().map(url).collect()
    }

    pub fn set(&self, fault: Fault) {
        for link in &self.0 {
            link.link().set(fault);
        }
    }
}

/// Cuts one after the other off, chosen by the seed, for up to twice that long. Tells how often.
pub async fn cut_at_random(
    links: &[OwnLinks],
    seed: u64,
    length: Duration,
    ttl: Duration,
) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let end = Instant::now() + length;
    let mut cuts = 0;
    while Instant::now() < end {
        let alone = &links[rng.usize(..links.len())];
        alone.set([Fault::Freeze, Fault::Refuse][rng.usize(..2)]);
        hold(ttl.mul_f64(0.1 + 1.9 * rng.f64())).await;
        alone.set(Fault::None);
        hold(ttl.mul_f64(0.5 * rng.f64())).await;
        cuts += 1;
    }
    cuts
}
