//! Links from one client to its endpoints, which a test can cut without affecting other clients.

use std::time::Duration;

use testbed::{Fault, TcpProxy};
use tokio::time::Instant;

use crate::support::wait::hold;

/// Longer than a client looks for the effects of its unanswered requests.
const LONGEST_FREEZE: Duration = Duration::from_secs(20);

/// Links of one client, one per endpoint, in front of the links that all clients share. Either kind can fail.
pub struct NodeLinks(Vec<TcpProxy>);

impl NodeLinks {
    pub fn to(endpoints: &[String]) -> Self {
        let link_to = |endpoint: &String| {
            let port = endpoint.rsplit(':').next().map(str::parse);
            TcpProxy::to_port(port.unwrap().unwrap())
        };
        Self(endpoints.iter().map(link_to).collect())
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

/// Cuts off one node after the other, each for up to two TTLs, until `duration` has passed. The seed selects the nodes
/// and the length of each cut. Returns the number of cuts.
pub async fn cut_links_randomly(
    nodes: &[NodeLinks],
    seed: u64,
    duration: Duration,
    ttl: Duration,
) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let end = Instant::now() + duration;
    let mut cuts = 0;
    while Instant::now() < end {
        let node = &nodes[rng.usize(..nodes.len())];
        node.set([Fault::Freeze, Fault::Refuse][rng.usize(..2)]);
        hold(ttl.mul_f64(0.1 + 1.9 * rng.f64())).await;
        node.set(Fault::None);
        hold(ttl.mul_f64(0.5 * rng.f64())).await;
        cuts += 1;
    }
    cuts
}

/// Freezes one link of every node at a time, each for up to [`LONGEST_FREEZE`], until `duration` has passed. Nodes with
/// a single link are left alone. Returns the number of frozen links.
pub async fn freeze_single_links(nodes: &[NodeLinks], seed: u64, duration: Duration) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let end = Instant::now() + duration;
    let mut frozen = 0;
    while Instant::now() < end && nodes.iter().all(|node| node.0.len() > 1) {
        let links: Vec<_> = nodes
            .iter()
            .map(|node| node.0[rng.usize(..node.0.len())].link())
            .collect();
        for link in &links {
            link.set(Fault::Freeze);
        }
        frozen += links.len();
        let freeze = LONGEST_FREEZE.mul_f64(0.1 + 0.9 * rng.f64());
        tokio::time::sleep_until((Instant::now() + freeze).min(end)).await;
        for link in &links {
            link.heal();
        }
        hold(Duration::from_millis(500)).await;
    }
    frozen
}
