//! A singleton actor whose nodes are processes that are paused and cut off.
//!
//! A paused process cannot stop its actor in time, but the actor does nothing during the pause. After the pause it may
//! at most finish the one step it was paused in.

use std::{collections::BTreeMap, time::Duration};

use actix_etcd::Client;
use testbed::{Chaos, Cluster, Fault, TcpProxy};

use crate::support::{
    process_isolation::{ChildTest, child_test},
    singleton_process::{EventKind, NodeEvent, NodeProcess, TTL, now, run_as_node},
    wait::{hold, until, until_async},
};

/// Times at which one actor did something.
#[derive(Debug)]
struct ActorLife {
    token: i64,
    actions: Vec<Duration>,
}

/// Returns the actions of every actor, ordered by fencing token.
fn actor_lives(events_by_node: &[Vec<NodeEvent>]) -> Vec<ActorLife> {
    let mut lives = BTreeMap::<i64, Vec<Duration>>::new();
    let is_action = |event: &&NodeEvent| matches!(event.kind, EventKind::Started | EventKind::Beat);
    for event in events_by_node.iter().flatten().filter(is_action) {
        lives.entry(event.token).or_default().push(event.at);
    }
    let life = |(token, actions)| ActorLife { token, actions };
    lives.into_iter().map(life).collect()
}

struct Pause {
    node: usize,
    start: Duration,
    end: Duration,
}

/// Fails if an actor did something after the next one had started, except for the one step it was paused in. Returns
/// the number of actors and the number of steps that were finished after a pause.
fn check_one_at_a_time(events_by_node: &[Vec<NodeEvent>], pauses: &[Pause]) -> (usize, usize) {
    let lives = actor_lives(events_by_node);
    let mut finished_steps = 0;
    for pair in lives.windows(2) {
        let (older, newer) = (&pair[0], &pair[1]);
        let newer_start = newer.actions[0];
        let late: Vec<_> = older
            .actions
            .iter()
            .filter_map(|at| at.checked_sub(newer_start))
            .collect();
        let ran_older =
            |events: &Vec<NodeEvent>| events.iter().any(|event| event.token == older.token);
        let node = events_by_node.iter().position(ran_older).unwrap();
        let paused = pauses
            .iter()
            .any(|pause| pause.node == node && (pause.start..=pause.end).contains(&newer_start));
        assert!(
            late.len() <= usize::from(paused),
            "actor {} acted {} times after actor {} had started (paused: {paused}): {:?}",
            older.token,
            late.len(),
            newer.token,
            &late[..late.len().min(20)]
        );
        finished_steps += late.len();
    }
    (lives.len(), finished_steps)
}

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
            let start = now();
            node.pause().await;
            nodes.wait_for_start_elsewhere(leader, starts).await;
            nodes.wait_for_more(EventKind::Beat, 50).await;
            node.resume();
            pauses.push(Pause {
                node: leader,
                start,
                end: now(),
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
        let (actors, _) = check_one_at_a_time(&events_by_node, &pauses);
        assert!(actors >= 3, "{actors}");
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
        check_one_at_a_time(&events_by_node, &[]);
        let lives = actor_lives(&events_by_node);
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

/// `CHAOS_SECS` sets the duration, `CHAOS_SEED` the seed, which the test prints.
#[test]
fn randomly_paused_and_cut_off_nodes_never_overlap() {
    if run_as_node() {
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let nodes = Nodes::start(3, || child_test!()).await;
        let chaos = Chaos::from_env("nodes");
        let mut rng = fastrand::Rng::with_seed(chaos.seed());
        let end = tokio::time::Instant::now() + chaos.duration();
        let mut pauses = Vec::new();
        let mut faults = 0;
        while tokio::time::Instant::now() < end {
            let number = rng.usize(..nodes.processes.len());
            let (node, link) = (&nodes.processes[number], nodes.links[number].link());
            let (paused, cut_off) = [(true, false), (false, true), (true, true)][rng.usize(..3)];
            if cut_off {
                link.set([Fault::Freeze, Fault::Refuse][rng.usize(..2)]);
            }
            let start = now();
            if paused {
                node.pause().await;
            }
            // From a tenth of the TTL to more than two TTLs.
            hold(TTL.mul_f64(0.1 + 2.0 * rng.f64())).await;
            link.heal();
            node.resume();
            if paused {
                pauses.push(Pause {
                    node: number,
                    start,
                    end: now(),
                });
            }
            faults += 1;
            hold(TTL.mul_f64(0.5 * rng.f64())).await;
        }
        // Pauses the leader until the singleton moves, because the random faults may have missed it.
        let leader = nodes.leader().await;
        let starts = nodes.starts_elsewhere(leader);
        let start = now();
        nodes.processes[leader].pause().await;
        nodes.wait_for_start_elsewhere(leader, starts).await;
        nodes.processes[leader].resume();
        pauses.push(Pause {
            node: leader,
            start,
            end: now(),
        });
        nodes.wait_for_more(EventKind::Beat, 50).await;
        let (actors, finished_steps) = check_one_at_a_time(&nodes.stop().await, &pauses);
        println!("{faults} faults, {actors} actors, {finished_steps} steps finished after a pause");
        assert!(actors >= 2);
    });
}
