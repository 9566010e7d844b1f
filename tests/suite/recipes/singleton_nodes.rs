//! An actor that runs on exactly one node, where nodes are processes: cut off, and paused.
//!
//! A process that is paused cannot end its actor in time, but it does nothing either: what counts is what it does when
//! it goes on. That is nothing, but for the one step it may have been paused in.

use std::{collections::BTreeMap, time::Duration};

use actix_etcd::Client;
use testbed::{Chaos, Cluster, Fault, TcpProxy};

use crate::support::{
    singleton_process::{Node, Said, TTL, Word, is_a_node, now},
    wait::{hold, until, until_async},
};

/// What one actor did.
#[derive(Debug)]
struct Life {
    token: i64,
    acts: Vec<Duration>,
}

/// Everything each actor did, in the order of their tokens.
fn lives(nodes: &[Vec<Said>]) -> Vec<Life> {
    let mut lives = BTreeMap::<i64, Vec<Duration>>::new();
    let acts = |said: &&Said| matches!(said.word, Word::Started | Word::Beat);
    for said in nodes.iter().flatten().filter(acts) {
        lives.entry(said.token).or_default().push(said.at);
    }
    let life = |(token, acts)| Life { token, acts };
    lives.into_iter().map(life).collect()
}

/// When a node was paused: its number, from when, until when.
type Pause = (usize, Duration, Duration);

/// Fails where one did something after the next had started, but for the one step it may have been paused in. Gives how
/// many lived, and how many were paused in a step.
fn one_at_a_time(nodes: &[Vec<Said>], pauses: &[Pause]) -> (usize, usize) {
    let lives = lives(nodes);
    let mut unfinished = 0;
    for pair in lives.windows(2) {
        let (older, newer) = (&pair[0], &pair[1]);
        let start = newer.acts[0];
        let late: Vec<_> = older
            .acts
            .iter()
            .filter_map(|at| at.checked_sub(start))
            .collect();
        let is_theirs = |said: &Vec<Said>| said.iter().any(|said| said.token == older.token);
        let node = nodes.iter().position(is_theirs).unwrap();
        let paused = pauses
            .iter()
            .any(|(number, from, to)| *number == node && (*from..=*to).contains(&start));
        assert!(
            late.len() <= usize::from(paused),
            "{} did {} things after {} had started (paused: {paused}): {:?}",
            older.token,
            late.len(),
            newer.token,
            &late[..late.len().min(20)]
        );
        unfinished += late.len();
    }
    (lives.len(), unfinished)
}

fn ended_at(nodes: &[Vec<Said>], token: i64) -> Duration {
    let ended = |said: &&Said| said.word == Word::Ended && said.token == token;
    let ended = nodes.iter().flatten().find(ended);
    ended.expect("it has ended").at
}

/// The token of the last one that started there.
fn newest(node: &Node) -> Option<i64> {
    let said = node.said();
    let started = said.iter().filter(|said| said.word == Word::Started);
    started.map(|said| said.token).max()
}

/// Nodes, and the way to etcd each has for itself.
struct Scene {
    _cluster: Cluster,
    links: Vec<TcpProxy>,
    nodes: Vec<Node>,
}

impl Scene {
    async fn start(test: &str, nodes: usize) -> Self {
        let cluster = Cluster::start(1).await;
        let direct = cluster.direct_endpoints()[0].clone();
        let port = direct.rsplit(':').next().unwrap().parse().unwrap();
        let links: Vec<_> = (0..nodes).map(|_| TcpProxy::to_port(port)).collect();
        let nodes: Vec<_> = links
            .iter()
            .map(|link| Node::start(test, &[format!("http://{}", link.address())]))
            .collect();
        let etcd = Client::connect(cluster.direct_endpoints()).await.unwrap();
        let all = i64::try_from(nodes.len()).unwrap();
        until_async("all are candidates", async || {
            etcd.get("only/").prefix().await.unwrap().count == all
        })
        .await;
        Self {
            _cluster: cluster,
            links,
            nodes,
        }
    }

    fn count(&self, word: Word) -> usize {
        self.nodes.iter().map(|node| node.count(word)).sum()
    }

    /// Waits until there are so many more of these words.
    async fn says(&self, word: Word, more: usize) {
        let before = self.count(word);
        until(&format!("{word:?} is said {more} times more"), || {
            self.count(word) >= before + more
        })
        .await;
    }

    /// The node on which it runs now: where the newest has started.
    async fn leader(&self) -> usize {
        self.says(Word::Beat, 20).await;
        let tokens = self.nodes.iter().map(newest);
        let (number, _) = tokens.enumerate().max_by_key(|(_, token)| *token).unwrap();
        number
    }

    /// Waits until it has started on another node than this, since so many starts there.
    async fn moves(&self, from: usize, starts: usize) {
        until("it has started on another node", || {
            self.starts_elsewhere(from) > starts
        })
        .await;
    }

    fn starts_elsewhere(&self, from: usize) -> usize {
        self.count(Word::Started) - self.nodes[from].count(Word::Started)
    }

    async fn end(self) -> Vec<Vec<Said>> {
        let mut said = Vec::new();
        for node in self.nodes {
            said.push(node.end().await);
        }
        said
    }
}

#[test]
fn a_node_that_was_paused_does_nothing_more_when_it_goes_on() {
    const NAME: &str =
        "recipes::singleton_nodes::a_node_that_was_paused_does_nothing_more_when_it_goes_on";
    if is_a_node() {
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let scene = Scene::start(NAME, 2).await;
        let (mut pauses, mut paused) = (Vec::new(), Vec::new());
        // And the other way round.
        for _ in 0..2 {
            let leader = scene.leader().await;
            let starts = scene.starts_elsewhere(leader);
            let node = &scene.nodes[leader];
            let (ended, refused) = (node.count(Word::Ended), node.count(Word::Refused));
            paused.push(newest(node).unwrap());
            let from = now();
            node.pause().await;
            scene.moves(leader, starts).await;
            scene.says(Word::Beat, 50).await;
            node.resume();
            pauses.push((leader, from, now()));
            node.says(Word::Ended, ended + 1).await;
            node.says(Word::Refused, refused + 1).await;
        }
        let said = scene.end().await;
        let late = |said: &&Said| said.word == Word::Written && paused.contains(&said.token);
        assert!(!said.iter().flatten().any(|said| late(&said)));
        let (lives, _) = one_at_a_time(&said, &pauses);
        assert!(lives >= 3, "{lives}");
    });
}

#[test]
fn a_node_that_is_cut_off_has_ended_its_actor_before_another_node_starts_it() {
    const NAME: &str = "recipes::singleton_nodes::a_node_that_is_cut_off_has_ended_its_actor_before_another_node_starts_it";
    if is_a_node() {
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let scene = Scene::start(NAME, 2).await;
        let leader = scene.leader().await;
        let starts = scene.starts_elsewhere(leader);
        scene.links[leader].link().set(Fault::Freeze);
        scene.moves(leader, starts).await;
        scene.links[leader].link().heal();
        scene.says(Word::Beat, 50).await;
        let said = scene.end().await;
        one_at_a_time(&said, &[]);
        let lives = lives(&said);
        assert!(lives.len() >= 2);
        for pair in lives.windows(2) {
            let ended = ended_at(&said, pair[0].token);
            assert!(ended < pair[1].acts[0], "two were alive at once");
        }
    });
}

/// `CHAOS_SECS` and `CHAOS_SEED` say how long and from which seed; the seed is printed.
#[test]
fn nodes_that_are_paused_and_cut_off_at_random_never_act_at_once() {
    const NAME: &str =
        "recipes::singleton_nodes::nodes_that_are_paused_and_cut_off_at_random_never_act_at_once";
    if is_a_node() {
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let scene = Scene::start(NAME, 3).await;
        let chaos = Chaos::from_env("nodes");
        let mut rng = fastrand::Rng::with_seed(chaos.seed());
        let end = tokio::time::Instant::now() + chaos.duration();
        let mut pauses = Vec::new();
        let mut struck = 0;
        while tokio::time::Instant::now() < end {
            let number = rng.usize(..scene.nodes.len());
            let (node, link) = (&scene.nodes[number], scene.links[number].link());
            let (paused, cut_off) = [(true, false), (false, true), (true, true)][rng.usize(..3)];
            if cut_off {
                link.set([Fault::Freeze, Fault::Refuse][rng.usize(..2)]);
            }
            let from = now();
            if paused {
                node.pause().await;
            }
            // From hardly noticed to longer than the lease.
            hold(TTL.mul_f64(0.1 + 2.0 * rng.f64())).await;
            link.heal();
            node.resume();
            if paused {
                pauses.push((number, from, now()));
            }
            struck += 1;
            hold(TTL.mul_f64(0.5 * rng.f64())).await;
        }
        // Whatever was struck by chance: the one it runs on, for as long as it takes.
        let leader = scene.leader().await;
        let starts = scene.starts_elsewhere(leader);
        let from = now();
        scene.nodes[leader].pause().await;
        scene.moves(leader, starts).await;
        scene.nodes[leader].resume();
        pauses.push((leader, from, now()));
        scene.says(Word::Beat, 50).await;
        let (lives, unfinished) = one_at_a_time(&scene.end().await, &pauses);
        println!("{struck} faults, {lives} lives, {unfinished} paused in a step");
        assert!(lives >= 2);
    });
}
