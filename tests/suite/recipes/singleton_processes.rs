//! A singleton actor whose nodes are processes that are paused and cut off.

use std::time::Duration;

use actix_etcd::Client;
use testbed::{Cluster, Fault, TcpProxy, time_since_boot};

use crate::support::{
    holder_timeline::{HolderTimeline, Pause, holder_lives},
    node_process::{EventKind, NodeEvent, NodeProcess},
    process_isolation::{ChildTest, child_test},
    singleton_process::run_as_node,
    wait::{until, until_async},
};

fn stopped_at(events_by_node: &[Vec<NodeEvent>], token: i64) -> Duration {
    let is_stop = |event: &&NodeEvent| event.kind == EventKind::Stopped && event.token == token;
    let stop = events_by_node.iter().flatten().find(is_stop);
    stop.expect("the actor has stopped").at
}

/// Returns the fencing token of the last actor that started on a node.
fn newest_token(node: &NodeProcess) -> Option<i64> {
    let events = node.events();
    let started = events
        .iter()
        .filter(|event| event.kind == EventKind::Started);
    started.map(|event| event.token).max()
}

/// Node processes, each with its own link to etcd.
struct Nodes {
    _cluster: Cluster,
    links: Vec<TcpProxy>,
    processes: Vec<NodeProcess>,
}

impl Nodes {
    /// Starts `count` nodes, each as a process that runs the test again.
    async fn start(count: usize, test: impl Fn() -> ChildTest) -> Self {
        let cluster = Cluster::start(1).await;
        let direct = cluster.direct_endpoints()[0].clone();
        let port = direct.rsplit(':').next().unwrap().parse().unwrap();
        let links: Vec<_> = (0..count).map(|_| TcpProxy::to_port(port)).collect();
        let processes: Vec<_> = links
            .iter()
            .map(|link| NodeProcess::start(test(), &[format!("http://{}", link.address())]))
            .collect();
        let etcd = Client::connect(cluster.direct_endpoints()).await.unwrap();
        let all = i64::try_from(processes.len()).unwrap();
        until_async("all nodes are candidates", async || {
            etcd.get("only/").prefix().await.unwrap().count == all
        })
        .await;
        Self {
            _cluster: cluster,
            links,
            processes,
        }
    }

    /// Returns the number of events of one kind on all nodes.
    fn count(&self, kind: EventKind) -> usize {
        self.processes.iter().map(|node| node.count(kind)).sum()
    }

    /// Waits until the nodes have reported `more` further events of one kind.
    async fn wait_for_more(&self, kind: EventKind, more: usize) {
        let before = self.count(kind);
        until(&format!("{kind:?} is reported {more} more times"), || {
            self.count(kind) >= before + more
        })
        .await;
    }

    /// Returns the number of the node on which the singleton runs.
    async fn leader(&self) -> usize {
        self.wait_for_more(EventKind::Beat, 20).await;
        let tokens = self.processes.iter().map(newest_token);
        let (node, _) = tokens.enumerate().max_by_key(|(_, token)| *token).unwrap();
        node
    }

    /// Waits until the other nodes than `node` have reported more than `starts` starts.
    async fn wait_for_start_elsewhere(&self, node: usize, starts: usize) {
        until("the singleton has started on another node", || {
            self.starts_elsewhere(node) > starts
        })
        .await;
    }

    /// Returns the number of starts on other nodes than `node`.
    fn starts_elsewhere(&self, node: usize) -> usize {
        self.count(EventKind::Started) - self.processes[node].count(EventKind::Started)
    }

    /// Stops all nodes. Returns the events of each.
    async fn stop(self) -> Vec<Vec<NodeEvent>> {
        let mut events_by_node = Vec::new();
        for node in self.processes {
            events_by_node.push(node.stop().await);
        }
        events_by_node
    }
}

#[test]
fn paused_node_stops_acting_when_resumed() {
    if run_as_node() {
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let nodes = Nodes::start(2, || child_test!()).await;
        let (mut pauses, mut paused_tokens) = (Vec::new(), Vec::new());
        // In the second round the singleton moves back.
        for _ in 0..2 {
            let leader = nodes.leader().await;
            let starts = nodes.starts_elsewhere(leader);
            let node = &nodes.processes[leader];
            let stops = node.count(EventKind::Stopped);
            let rejections = node.count(EventKind::StaleWriteRejected);
            paused_tokens.push(newest_token(node).unwrap());
            let start = time_since_boot();
            node.pause().await;
            nodes.wait_for_start_elsewhere(leader, starts).await;
            nodes.wait_for_more(EventKind::Beat, 50).await;
            node.resume();
            pauses.push(Pause {
                node: leader,
                start,
                end: time_since_boot(),
            });
            node.wait_for(EventKind::Stopped, stops + 1).await;
            node.wait_for(EventKind::StaleWriteRejected, rejections + 1)
                .await;
        }
        let events_by_node = nodes.stop().await;
        let is_stale_write = |event: &NodeEvent| {
            event.kind == EventKind::StaleWriteApplied && paused_tokens.contains(&event.token)
        };
        assert!(!events_by_node.iter().flatten().any(is_stale_write));
        let timeline = HolderTimeline::new(&events_by_node, &pauses);
        timeline.check_one_at_a_time();
        assert!(timeline.holders >= 3, "{timeline}");
    });
}

#[test]
fn cut_off_node_stops_actor_before_next_start() {
    if run_as_node() {
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let nodes = Nodes::start(2, || child_test!()).await;
        let leader = nodes.leader().await;
        let starts = nodes.starts_elsewhere(leader);
        nodes.links[leader].link().set(Fault::Freeze);
        nodes.wait_for_start_elsewhere(leader, starts).await;
        nodes.links[leader].link().heal();
        nodes.wait_for_more(EventKind::Beat, 50).await;
        let events_by_node = nodes.stop().await;
        HolderTimeline::new(&events_by_node, &[]).check_one_at_a_time();
        let lives = holder_lives(&events_by_node);
        assert!(lives.len() >= 2);
        for pair in lives.windows(2) {
            let stopped = stopped_at(&events_by_node, pair[0].token);
            assert!(
                stopped < pair[1].actions[0],
                "two actors were alive at the same time"
            );
        }
    });
}
