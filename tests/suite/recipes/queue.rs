//! Queues: order, completion, failures, visibility time-outs, waiting, bad input.

use std::time::Duration;

use actix_etcd::{
    Client, ErrorKind, Outcome,
    kv::put,
    recipes::{
        mutex::OwnershipLost,
        queue::{Queue, QueueItem},
    },
};
use testbed::{Cluster, Fault};
use tokio::task::JoinSet;

use crate::support::{
    connected_cluster::StartWithClient,
    node_links::NodeLinks,
    wait::{TEST_TIMEOUT, until_async},
};

const SECOND: Duration = Duration::from_secs(1);

async fn count(etcd: &Client, prefix: &str) -> i64 {
    let counted = etcd.get(prefix).prefix().count_only().await.unwrap();
    counted.count
}

fn value(item: &QueueItem) -> &str {
    std::str::from_utf8(item.value()).unwrap()
}

async fn push_all<const N: usize>(queue: &Queue<Client>, values: [&str; N]) {
    for value in values {
        queue.push(value).await.unwrap();
    }
}

async fn take_values(queue: &Queue<Client>, count: usize) -> Vec<String> {
    let mut values = Vec::new();
    for _ in 0..count {
        let item = queue.take().await.unwrap();
        values.push(value(&item).to_owned());
        item.done().await.unwrap();
    }
    values
}

/// Fails unless no key of the queue is left, except for those of the session.
async fn assert_nothing_left(etcd: &Client) {
    for prefix in ["jobs/", "__jobs/claims/"] {
        assert_eq!(count(etcd, prefix).await, 0, "{prefix}");
    }
    until_async("the line is empty", async || {
        count(etcd, "__jobs/takers/").await == 0
    })
    .await;
}

#[tokio::test]
async fn items_are_taken_in_order_of_creation() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs");
    push_all(&jobs, ["a", "b"]).await;
    // As Go programs push, here with a clock that is slow.
    etcd.put("jobs/1000000000000000000", "c").await.unwrap();
    let pushed = jobs.push("d").priority(7).await.unwrap();
    assert!(pushed.key.starts_with(b"jobs/00007/"));
    assert_eq!(jobs.len().await.unwrap(), 4);
    assert_eq!(jobs.peek().await.unwrap().unwrap().value, "a");
    assert_eq!(take_values(&jobs, 4).await, ["a", "b", "c", "d"]);
    assert!(jobs.try_take().await.unwrap().is_none());
    assert!(jobs.peek().await.unwrap().is_none());
    assert!(jobs.is_empty().await.unwrap());
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn next_item_is_found_behind_many_taken_ones() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for queue in [etcd.queue("jobs"), etcd.queue("jobs").by_priority()] {
        // Keys in the opposite order of their creation.
        for n in 0..50 {
            etcd.put(format!("jobs/00003/{:04}", 1000 - n), n.to_string())
                .await
                .unwrap();
        }
        let mut taken = Vec::new();
        for n in 0..50 {
            let item = queue.take().await.unwrap();
            assert_eq!(value(&item), n.to_string());
            taken.push(item);
        }
        assert!(queue.try_take().await.unwrap().is_none());
        for item in taken {
            item.done().await.unwrap();
        }
    }
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn smallest_priority_is_taken_first() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs").by_priority();
    jobs.push("none").await.unwrap();
    for (value, priority) in [("c", 500), ("a1", 3), ("z", u16::MAX), ("a2", 3), ("b", 40)] {
        jobs.push(value).priority(priority).await.unwrap();
    }
    assert_eq!(jobs.peek().await.unwrap().unwrap().value, "a1");
    assert_eq!(
        take_values(&jobs, 6).await,
        ["a1", "a2", "b", "c", "z", "none"]
    );
}

#[tokio::test]
async fn each_item_has_one_taker_at_a_time() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs");
    for n in 0..40 {
        jobs.push(n.to_string()).await.unwrap();
    }
    let mut takers = JoinSet::new();
    for _ in 0..8 {
        // A session per taker.
        let jobs = etcd.queue("jobs");
        takers.spawn(async move {
            let mut items = Vec::new();
            while let Some(item) = jobs.try_take().await.unwrap() {
                items.push(item);
            }
            items
        });
    }
    let items: Vec<_> = takers.join_all().await.into_iter().flatten().collect();
    let mut values: Vec<u32> = items
        .iter()
        .map(|item| value(item).parse().unwrap())
        .collect();
    values.sort_unstable();
    assert_eq!(values, (0..40).collect::<Vec<_>>());
    assert_eq!(count(&etcd, "__jobs/claims/").await, 40);
    for item in &items {
        assert_eq!(item.attempt(), 1);
        item.done().await.unwrap();
    }
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn item_wakes_one_taker_of_the_line() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (sender, mut taken) = tokio::sync::mpsc::unbounded_channel();
    let mut takers = JoinSet::new();
    for n in 0..4 {
        let (jobs, sender) = (etcd.queue("jobs"), sender.clone());
        takers.spawn(async move {
            let item = jobs.take().await.unwrap();
            sender.send(n).unwrap();
            item.done().await.unwrap();
        });
        let line = async || count(&etcd, "__jobs/takers/").await == n + 1;
        until_async("the taker is in the line", line).await;
    }
    // In the order of the line, one per item, and the others still wait.
    for n in 0..4 {
        etcd.queue("jobs").push("x").await.unwrap();
        assert_eq!(taken.recv().await, Some(n));
        let line = async || count(&etcd, "__jobs/takers/").await == 3 - n;
        until_async("the taker has left the line", line).await;
        assert!(taken.try_recv().is_err());
    }
    takers.join_all().await;
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn taker_that_lost_its_place_takes_an_item() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mut takers = JoinSet::new();
    for n in 0..2 {
        let jobs = etcd.queue("jobs");
        takers.spawn(async move { jobs.take().await.unwrap().done().await.unwrap() });
        let line = async || count(&etcd, "__jobs/takers/").await == n + 1;
        until_async("the taker is in the line", line).await;
    }
    let line = etcd
        .get("__jobs/takers/")
        .prefix()
        .sort_by_create_revision();
    let second = line.await.unwrap().kvs[1].clone();
    etcd.delete(&second.key).await.unwrap();
    // The taker detects the loss at the latest when the first one has left the line.
    push_all(&etcd.queue("jobs"), ["a", "b"]).await;
    takers.join_all().await;
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn dropped_item_returns_after_its_visibility_timeout() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs").visibility(SECOND);
    push_all(&jobs, ["a"]).await;
    let first = jobs.take().await.unwrap();
    assert!(first.remaining() <= SECOND && !first.remaining().is_zero());
    let lost = tokio::spawn(first.lost());
    let ownership = first.ownership().clone();
    drop(first);
    assert!(jobs.try_take().await.unwrap().is_none());
    let again = jobs.take().await.unwrap();
    assert_eq!((value(&again), again.attempt()), ("a", 2));
    assert!(again.token() > ownership.token());
    assert_eq!(lost.await.unwrap(), OwnershipLost::TimedOut);
    again.done().await.unwrap();
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn late_completion_has_no_effect() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs").visibility(SECOND);
    push_all(&jobs, ["a"]).await;
    let late = jobs.take().await.unwrap();
    let again = jobs.take().await.unwrap();
    let error = late.done_with(put("effect", "late")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::LockLost, Outcome::Rejected)
    );
    for result in [
        late.put_back().await,
        late.retry_after(SECOND).await,
        late.extend(SECOND),
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::LockLost);
    }
    assert!(etcd.get("effect").await.unwrap().kvs.is_empty());
    let unfenced = etcd
        .txn()
        .when(late.conditions())
        .then(put("effect", "late"));
    assert!(!unfenced.await.unwrap().succeeded);
    again
        .done_with((put("effect", "done"), put("log", "a")))
        .await
        .unwrap();
    assert_eq!(etcd.get("effect").await.unwrap().value().unwrap(), "done");
    let twice = again.done().await.unwrap_err();
    assert_eq!(
        (twice.kind(), twice.outcome()),
        (ErrorKind::LockLost, Outcome::NotSent)
    );
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn extended_item_stays_taken() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs").visibility(SECOND);
    push_all(&jobs, ["a"]).await;
    let item = jobs.take().await.unwrap();
    let lost = tokio::spawn(item.lost());
    let until = tokio::time::Instant::now() + 2 * SECOND;
    while tokio::time::Instant::now() < until {
        item.extend(SECOND).unwrap();
        tokio::time::sleep(SECOND / 5).await;
    }
    assert!(!lost.is_finished());
    item.done().await.unwrap();
    assert_eq!(lost.await.unwrap(), OwnershipLost::Taken);
    assert_eq!(item.extend(SECOND).unwrap_err().kind(), ErrorKind::LockLost);
}

#[tokio::test]
async fn returned_items_keep_their_place() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs");
    push_all(&jobs, ["a", "b"]).await;
    let first = jobs.take().await.unwrap();
    first.put_back().await.unwrap();
    let first = jobs.take().await.unwrap();
    assert_eq!((value(&first), first.attempt()), ("a", 2));
    first.retry_after(SECOND).await.unwrap();
    assert_eq!(first.done().await.unwrap_err().kind(), ErrorKind::LockLost);
    let second = jobs.take().await.unwrap();
    assert_eq!(value(&second), "b");
    // The delay does not depend on the session.
    drop((first, jobs));
    let jobs = etcd.queue("jobs");
    assert!(jobs.try_take().await.unwrap().is_none());
    let first = jobs.take().await.unwrap();
    assert_eq!((value(&first), first.attempt()), ("a", 3));
    first.done().await.unwrap();
    second.done().await.unwrap();
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn shortest_and_longest_delays_are_accepted_or_refused_early() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs");
    push_all(&jobs, ["a"]).await;
    let item = jobs.take().await.unwrap();
    let error = item.retry_after(Duration::MAX).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(item.ownership().is_certain());
    item.retry_after(Duration::ZERO).await.unwrap();
    assert_eq!(jobs.take().await.unwrap().attempt(), 2);
}

#[tokio::test]
async fn item_that_fails_too_often_is_a_dead_letter() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs").dead_letters(2, "dead");
    jobs.push("bad").priority(1).await.unwrap();
    push_all(&jobs, ["good"]).await;
    for attempt in 1..=2 {
        let item = jobs.take().await.unwrap();
        assert_eq!((value(&item), item.attempt()), ("bad", attempt));
        item.put_back().await.unwrap();
    }
    assert_eq!(take_values(&jobs, 1).await, ["good"]);
    assert!(jobs.try_take().await.unwrap().is_none());
    let dead = etcd.queue("dead").take().await.unwrap();
    assert_eq!((value(&dead), dead.attempt()), ("bad", 1));
    assert!(dead.key().starts_with(b"dead/00001/"));
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn items_of_a_dropped_queue_are_ready_at_once() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs");
    push_all(&jobs, ["a"]).await;
    let item = jobs.take().await.unwrap();
    drop(jobs);
    assert_eq!(
        count(&etcd, "__jobs/claims/").await,
        1,
        "the item keeps the session open"
    );
    drop(item);
    let jobs = etcd.queue("jobs");
    let again = tokio::time::timeout(TEST_TIMEOUT / 2, jobs.take());
    assert_eq!(again.await.unwrap().unwrap().attempt(), 2);
}

#[tokio::test]
async fn item_of_a_crashed_taker_is_ready_after_its_ttl() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.queue("jobs").push("a").await.unwrap();
    let links = NodeLinks::to(&cluster.endpoints());
    let crashing = Client::builder(links.endpoints()).drop_grace(Duration::ZERO);
    let crashing = crashing.connect().await.unwrap();
    let item = crashing.queue("jobs").ttl(2 * SECOND).take().await.unwrap();
    let ownership = item.ownership().clone();
    links.set(Fault::Freeze);
    let again = etcd.queue("jobs").take().await.unwrap();
    assert!(!ownership.is_certain(), "two takers have the item");
    assert_eq!(again.attempt(), 2);
    again.done().await.unwrap();
    links.set(Fault::None);
    let error = item.done().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LockLost), "{error:?}");
    drop((item, crashing));
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn dropped_takes_leave_no_claim() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs");
    push_all(&jobs, ["a", "b", "c"]).await;
    // Opens the session.
    jobs.take().await.unwrap().put_back().await.unwrap();
    let mut dropped = 0;
    for n in 0..200_u32 {
        let limit = Duration::from_micros(u64::from(n) * 20);
        match tokio::time::timeout(limit, jobs.take()).await {
            Ok(item) => item.unwrap().put_back().await.unwrap(),
            Err(_) => dropped += 1,
        }
    }
    assert!(dropped > 10, "no take was dropped");
    let none_taken = async || count(&etcd, "__jobs/claims/").await == 0;
    until_async("unreceived items are given back", none_taken).await;
    assert_eq!(take_values(&jobs, 3).await, ["a", "b", "c"]);
    // While it waits for an item.
    let waiting = tokio::time::timeout(SECOND / 5, jobs.take()).await;
    assert!(waiting.is_err());
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn take_continues_with_the_next_lease() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let jobs = etcd.queue("jobs");
    push_all(&jobs, ["a", "b"]).await;
    let first = jobs.take().await.unwrap();
    let claims = etcd.get("__jobs/claims/").prefix().await.unwrap();
    etcd.revoke(claims.first().unwrap().lease).await.unwrap();
    // The client has not detected the loss yet.
    let again = jobs.take().await.unwrap();
    assert_eq!((value(&again), again.attempt()), ("a", 2));
    assert!(!first.ownership().is_certain());
    again.done().await.unwrap();
    assert_eq!(take_values(&jobs, 1).await, ["b"]);
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn take_ends_with_the_client() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let ending = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.queue("jobs").push("a").await.unwrap();
    let jobs = ending.queue("jobs");
    let item = jobs.take().await.unwrap();
    let working = tokio::spawn(async move {
        let reason = item.lost().await;
        item.done().await.unwrap();
        reason
    });
    let waiting = tokio::spawn(async move { jobs.take().await });
    let line = async || count(&etcd, "__jobs/takers/").await == 1;
    until_async("the taker waits", line).await;
    // The shutdown waits for the work on the item.
    ending.shutdown().await;
    assert!(matches!(working.await.unwrap(), OwnershipLost::Session(_)));
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionLost);
    assert_nothing_left(&etcd).await;
}

#[tokio::test]
async fn names_of_slashes_are_refused() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for name in ["", "/"] {
        let queue = etcd.queue(name);
        let errors = [
            queue.push("x").await.unwrap_err(),
            queue.take().await.unwrap_err(),
            queue.len().await.unwrap_err(),
            etcd.queue("jobs")
                .dead_letters(1, name)
                .take()
                .await
                .unwrap_err(),
        ];
        for error in errors {
            let (kind, outcome) = (error.kind(), error.outcome());
            assert_eq!(
                (kind, outcome),
                (ErrorKind::InvalidArgument, Outcome::NotSent)
            );
        }
    }
    assert_eq!(count(&etcd, "").await, 0);
}

#[tokio::test]
async fn dead_letters_within_the_queue_are_refused() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for (queue, dead) in [("jobs", "jobs"), ("jobs", "jobs/dead"), ("a/jobs", "a")] {
        let queue = etcd.queue(queue).dead_letters(1, dead);
        let error = queue.try_take().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{dead}");
    }
    let beside = etcd.queue("jobs").dead_letters(1, "jobs-dead");
    assert!(beside.try_take().await.unwrap().is_none());
}
