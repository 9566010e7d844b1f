//! Node processes that are paused and cut off at random, while members of the cluster fail.

use std::time::Duration;

use actix_etcd::Client;
use testbed::{Chaos, ChaosKind, Cluster, Fault, time_since_boot};
use tokio::time::Instant;

use crate::support::{
    holder_timeline::Pause,
    node_links::NodeLinks,
    node_process::{EventKind, NodeEvent, NodeProcess},
    process_isolation::ChildTest,
    wait::{hold, until},
};

const SECOND: Duration = Duration::from_secs(1);

/// Pauses and other faults that were injected.
#[derive(Default)]
pub struct PauseRecord {
    pub pauses: Vec<Pause>,
    pub cuts: usize,
    pub member_faults: usize,
}

/// Node processes, each with its own links to the members.
pub struct PausedNodes {
    pub cluster: Cluster,
    links: Vec<NodeLinks>,
    pub processes: Vec<NodeProcess>,
}

impl PausedNodes {
    /// Starts three nodes, each as a process that runs the test again.
    pub async fn start(test: impl Fn() -> ChildTest) -> Self {
        let cluster = Cluster::start(3).await;
        let links: Vec<_> = (0..3)
            .map(|_| NodeLinks::to(&cluster.endpoints()))
            .collect();
        let processes = links
            .iter()
            .map(|links| NodeProcess::start(test(), &links.endpoints()))
            .collect();
        Self {
            cluster,
            links,
            processes,
        }
    }

    /// Returns the number of events of one kind on all nodes.
    pub fn count(&self, kind: EventKind) -> usize {
        self.processes.iter().map(|node| node.count(kind)).sum()
    }

    /// Waits until the nodes have reported further events of one kind.
    pub async fn wait_for_more(&self, kind: EventKind) {
        let before = self.count(kind);
        until(&format!("{kind:?} is reported again"), || {
            self.count(kind) > before
        })
        .await;
    }

    /// Pauses and cuts off every node at random, each for up to two TTLs, while one member at a time fails.
    ///
    /// Members fail for less than half of the TTL: a leader that was frozen for longer may revoke a renewed lease as
    /// expired when it is thawed.
    pub async fn inject_faults(&self, name: &str, ttl: Duration) -> PauseRecord {
        let chaos = Chaos::from_env(name).fault_duration(SECOND / 5, ttl / 2);
        let mut rngs = (0..).map(|node| fastrand::Rng::with_seed(chaos.seed().wrapping_add(node)));
        let end = Instant::now() + chaos.duration();
        let mut node = |number| self.pause_node(number, rngs.next().unwrap(), ttl, end);
        let (members, first, second, third) = tokio::join!(
            chaos.run(&self.cluster, &ChaosKind::ALL),
            node(0),
            node(1),
            node(2),
        );
        let mut record = PauseRecord {
            member_faults: members.len(),
            ..PauseRecord::default()
        };
        for (pauses, cuts) in [first, second, third] {
            record.pauses.extend(pauses);
            record.cuts += cuts;
        }
        record
    }

    /// Returns the pauses and the number of cuts.
    async fn pause_node(
        &self,
        number: usize,
        mut rng: fastrand::Rng,
        ttl: Duration,
        end: Instant,
    ) -> (Vec<Pause>, usize) {
        let (node, links) = (&self.processes[number], &self.links[number]);
        let (mut pauses, mut cuts) = (Vec::new(), 0);
        while Instant::now() < end {
            hold(ttl.mul_f64(1.5 * rng.f64())).await;
            let cut_off = rng.u8(..3) == 0;
            if cut_off {
                links.set([Fault::Freeze, Fault::Refuse][rng.usize(..2)]);
                cuts += 1;
            }
            let start = time_since_boot();
            node.pause().await;
            hold(ttl.mul_f64(0.1 + 1.9 * rng.f64())).await;
            links.set(Fault::None);
            node.resume();
            pauses.push(Pause {
                node: number,
                start,
                end: time_since_boot(),
            });
        }
        (pauses, cuts)
    }

    /// Ends the work of all nodes, but not their sessions.
    pub async fn make_idle(&mut self) {
        for node in &mut self.processes {
            node.make_idle().await;
        }
    }

    /// Returns a client without the links of a node.
    pub async fn client(&self) -> Client {
        Client::connect(self.cluster.endpoints()).await.unwrap()
    }

    /// Stops all nodes. Returns the events of each.
    pub async fn stop(self) -> Vec<Vec<NodeEvent>> {
        let mut events_by_node = Vec::new();
        for node in self.processes {
            events_by_node.push(node.stop().await);
        }
        events_by_node
    }
}
