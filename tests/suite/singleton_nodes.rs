//! An actor that runs on exactly one node, where nodes are processes: cut off, and paused.
//!
//! A process that is paused cannot end its actor in time, but it does nothing either: what counts is what it does when
//! it goes on. That is nothing, but for the one step it may have been paused in.

use std::{collections::BTreeMap, time::Duration};

use actix_etcd::Client;
use testbed::{Chaos, Cluster, Fault, TcpBehind};

use crate::{
    singleton_process::{Node, Said, TTL, Word, is_a_node},
    wait::{hold, until_async},
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

/// Fails where one did something after the next had started: more than the one step it may have been paused in.
fn one_at_a_time(nodes: &[Vec<Said>]) -> (usize, usize) {
    let lives = lives(nodes);
    let mut unfinished = 0;
    for pair in lives.windows(2) {
        let (older, newer) = (&pair[0], &pair[1]);
        let late: Vec<_> = older
            .acts
            .iter()
            .filter_map(|at| at.checked_sub(newer.acts[0]))
            .collect();
        assert!(
            late.len() <= 1,
            "{} did {} things after {} had started: {:?}",
            older.token,
            late.len(),
            newer.token,
            &late[..late.len().min(20)]
        );
        unfinished += late.len();
    }
    (lives.len(), unfinished)
}

fn ended_at(said: &[Said], token: i64) -> Duration {
    let ended = |said: &&Said| said.word == Word::Ended && said.token == token;
    said.iter().find(ended).expect("it has ended").at
}

async fn candidates_are(etcd: &Client, number: i64) {
    until_async(&format!("{number} candidates"), async || {
        etcd.get("only/").prefix().await.unwrap().count == number
    })
    .await;
}

/// Two nodes, of which the first one leads.
async fn two_nodes(test: &str, cluster: &Cluster, link: &TcpBehind) -> (Node, Node) {
    let etcd = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let behind = format!("http://{}", link.address());
    let first = Node::start(test, &[behind]);
    first.says(Word::Beat, 20).await;
    let second = Node::start(test, &cluster.direct_endpoints());
    candidates_are(&etcd, 2).await;
    assert_eq!(second.count(Word::Started), 0);
    (first, second)
}

fn link_to(cluster: &Cluster) -> TcpBehind {
    let direct = cluster.direct_endpoints()[0].clone();
    let port = direct.rsplit(':').next().unwrap().parse().unwrap();
    TcpBehind::port(port)
}

#[test]
fn a_node_that_was_paused_does_nothing_more_when_it_goes_on() {
    const NAME: &str = "singleton_nodes::a_node_that_was_paused_does_nothing_more_when_it_goes_on";
    if is_a_node() {
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let cluster = Cluster::start(1).await;
        let link = link_to(&cluster);
        let (first, second) = two_nodes(NAME, &cluster, &link).await;
        first.pause().await;
        second.says(Word::Started, 1).await;
        second.says(Word::Beat, 50).await;
        first.resume();
        first.says(Word::Ended, 1).await;
        first.says(Word::Refused, 1).await;
        // And the other way round.
        let beats = second.count(Word::Beat);
        second.says(Word::Beat, beats + 50).await;
        second.pause().await;
        first.says(Word::Started, 2).await;
        let beats = first.count(Word::Beat);
        first.says(Word::Beat, beats + 50).await;
        second.resume();
        second.says(Word::Refused, 1).await;
        assert_eq!(first.count(Word::Written) + second.count(Word::Written), 0);
        let said = [second.end().await, first.end().await];
        assert_eq!(one_at_a_time(&said).0, 3);
    });
}

#[test]
fn a_node_that_is_cut_off_has_ended_its_actor_before_another_node_starts_it() {
    const NAME: &str =
        "singleton_nodes::a_node_that_is_cut_off_has_ended_its_actor_before_another_node_starts_it";
    if is_a_node() {
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let cluster = Cluster::start(1).await;
        let link = link_to(&cluster);
        let (first, second) = two_nodes(NAME, &cluster, &link).await;
        link.link().set(Fault::Freeze);
        second.says(Word::Started, 1).await;
        link.link().heal();
        second.says(Word::Beat, 50).await;
        let said = [first.end().await, second.end().await];
        let lives = lives(&said);
        assert_eq!(lives.len(), 2);
        let ended = ended_at(&said[0], lives[0].token);
        assert!(ended < lives[1].acts[0], "two were alive at once");
    });
}

/// `CHAOS_SECS` and `CHAOS_SEED` say how long and from which seed; the seed is printed.
#[test]
fn nodes_that_are_paused_and_cut_off_at_random_never_act_at_once() {
    const NAME: &str =
        "singleton_nodes::nodes_that_are_paused_and_cut_off_at_random_never_act_at_once";
    if is_a_node() {
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let cluster = Cluster::start(1).await;
        let links: Vec<_> = (0..3).map(|_| link_to(&cluster)).collect();
        let nodes: Vec<_> = links
            .iter()
            .map(|link| Node::start(NAME, &[format!("http://{}", link.address())]))
            .collect();
        let chaos = Chaos::from_env("nodes");
        let mut rng = fastrand::Rng::with_seed(chaos.seed());
        let end = tokio::time::Instant::now() + chaos.length();
        let mut struck = 0;
        while tokio::time::Instant::now() < end {
            let number = rng.usize(..nodes.len());
            let (node, link) = (&nodes[number], links[number].link());
            let (paused, cut_off) = [(true, false), (false, true), (true, true)][rng.usize(..3)];
            if cut_off {
                link.set([Fault::Freeze, Fault::Refuse][rng.usize(..2)]);
            }
            if paused {
                node.pause().await;
            }
            // From hardly noticed to longer than the lease.
            hold(TTL.mul_f64(0.1 + 2.0 * rng.f64())).await;
            link.heal();
            node.resume();
            struck += 1;
            hold(TTL.mul_f64(0.5 * rng.f64())).await;
        }
        let before: usize = nodes.iter().map(|node| node.count(Word::Beat)).sum();
        crate::wait::until("it runs somewhere after the faults", || {
            let beats: usize = nodes.iter().map(|node| node.count(Word::Beat)).sum();
            beats > before
        })
        .await;
        let mut said = Vec::new();
        for node in nodes {
            said.push(node.end().await);
        }
        let (lives, unfinished) = one_at_a_time(&said);
        println!("{struck} faults, {lives} lives, {unfinished} paused in a step");
    });
}
