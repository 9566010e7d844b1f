//! Consumers that are slow, stop or panic.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::{Actor, ActorContext, Context, Handler, ResponseFuture};
use actix_etcd::{WatchEvent, kv::put};
use testbed::{
    Cluster,
    validators::{self, Record, Request},
};

use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

use crate::support::{
    connected_cluster::connect,
    watch_items::{WATCH_TIMEOUT, next_change, next_item},
    watch_recorder::{actual_history, to_record},
    watcher_metrics::wait_for_watchers,
};

#[tokio::test]
async fn slow_reader_pauses_alone_without_loss() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let open = etcd.watch("k").buffer(20).status_events();
    let mut slow = open.await.unwrap();
    let mut fast = etcd.watch("k").await.unwrap();
    let mut last = 0;
    for n in 0..300 {
        last = etcd.put("k", n.to_string()).await.unwrap().header.revision;
        assert_eq!(next_change(&mut fast).await.0, last);
    }
    // The paused watch is cancelled on the server.
    wait_for_watchers(&cluster, 1.0).await;
    let mut records = Vec::new();
    while slow.revision() < last {
        records.extend(to_record(next_item(&mut slow).await));
    }
    assert!(records.contains(&Record::Paused));
    let history = actual_history(&cluster).await;
    validators::all(&Request::key("k", 0), &records, &history).unwrap();
    let is_events = |record: &&Record| matches!(record, Record::Events { .. });
    assert_eq!(records.iter().filter(is_events).count(), 300);
    wait_for_watchers(&cluster, 2.0).await;
    etcd.shutdown().await;
}

#[tokio::test]
async fn large_values_pause_slow_reader_without_loss() {
    const VALUE: usize = 100_000;
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let open = etcd.watch("k").prefix().status_events();
    let mut slow = open.buffer_bytes(5 * VALUE).await.unwrap();
    let mut fast = etcd.watch("k").prefix().await.unwrap();
    // The last revision alone is larger than the buffer.
    let mut last = 0;
    for keys in [1; 30].into_iter().chain([10]) {
        let puts = (0..keys).map(|n| put(format!("k{n}"), vec![b'v'; VALUE]));
        let puts: Vec<_> = puts.collect();
        last = etcd.txn().then(puts).await.unwrap().header.revision;
        assert_eq!(next_change(&mut fast).await.0, last);
    }
    wait_for_watchers(&cluster, 1.0).await;
    let mut records = Vec::new();
    while slow.revision() < last {
        records.extend(to_record(next_item(&mut slow).await));
    }
    let is_events = |record: &&Record| matches!(record, Record::Events { .. });
    let buffered = records.iter().take_while(is_events).count();
    assert!((5..=15).contains(&buffered), "{buffered} before the pause");
    assert!(records.contains(&Record::Paused));
    let history = actual_history(&cluster).await;
    validators::all(&Request::prefix("k", 0), &records, &history).unwrap();
    assert_eq!(records.iter().filter(is_events).count(), 31);
    etcd.shutdown().await;
}

/// State of a [`SlowActor`], shared with the test.
#[derive(Default, Clone)]
struct Consumed {
    revision: Arc<AtomicI64>,
    items: Arc<AtomicUsize>,
    busy: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Consumed {
    async fn wait_until(&self, description: &str, condition: impl Fn(&Self) -> bool) {
        let wait = async {
            while !condition(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(WATCH_TIMEOUT, wait).await;
        assert!(waited.is_ok(), "condition not met: {description}");
    }
}

/// Takes 2 ms per item, and stops or panics at the given item number (0: never).
struct SlowActor {
    consumed: Consumed,
    stop_at: usize,
    panic_at: usize,
}

impl Actor for SlowActor {
    type Context = Context<Self>;
}

impl Handler<WatchEvent> for SlowActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, item: WatchEvent, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        let consumed = self.consumed.clone();
        let nth = consumed.items.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(nth != self.panic_at, "panic requested by the test");
        if nth == self.stop_at {
            ctx.stop();
        }
        assert!(
            !consumed.busy.swap(true, Ordering::SeqCst),
            "an item arrived before the previous one was handled"
        );
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            consumed.busy.store(false, Ordering::SeqCst);
            match item {
                WatchEvent::Events(events) => {
                    consumed.revision.store(events.revision(), Ordering::SeqCst);
                }
                WatchEvent::Ended(_) => consumed.ended.store(true, Ordering::SeqCst),
                _ => {}
            }
        })
    }
}

#[derive(actix::Message)]
#[rtype(result = "()")]
struct Stop;

impl Handler<Stop> for SlowActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

#[actix::test]
async fn slow_actor_receives_every_item_in_turn() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let consumed = Consumed::default();
    let slow = SlowActor {
        consumed: consumed.clone(),
        stop_at: 0,
        panic_at: 0,
    };
    let recipient = slow.start().recipient();
    let handle = etcd
        .watch("k")
        .buffer(10)
        .deliver_to(recipient)
        .await
        .unwrap();
    let mut last = 0;
    for n in 0..100 {
        last = etcd.put("k", n.to_string()).await.unwrap().header.revision;
    }
    let complete = |consumed: &Consumed| consumed.revision.load(Ordering::SeqCst) == last;
    consumed
        .wait_until("the last event arrives", complete)
        .await;
    assert_eq!(consumed.items.load(Ordering::SeqCst), 100);
    assert_eq!(handle.revision(), last);
    drop(handle);
    consumed
        .wait_until("the watch ends", |consumed| {
            consumed.ended.load(Ordering::SeqCst)
        })
        .await;
    assert_eq!(consumed.items.load(Ordering::SeqCst), 101);
    wait_for_watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}

#[actix::test]
async fn stopped_actor_cancels_only_its_own_watch() {
    for (stop_at, panic_at) in [(3, 0), (0, 3)] {
        let cluster = Cluster::start(1).await;
        let etcd = connect(cluster.endpoints()).await;
        let consumed = Consumed::default();
        let slow = SlowActor {
            consumed: consumed.clone(),
            stop_at,
            panic_at,
        };
        let recipient = slow.start().recipient();
        etcd.watch("k")
            .deliver_to(recipient)
            .await
            .unwrap()
            .detach();
        let mut other = etcd.watch("k").await.unwrap();
        wait_for_watchers(&cluster, 2.0).await;
        for n in 0..10 {
            etcd.put("k", n.to_string()).await.unwrap();
        }
        wait_for_watchers(&cluster, 1.0).await;
        assert_eq!(consumed.items.load(Ordering::SeqCst), 3);
        for n in 0..10 {
            let Some(WatchEvent::Events(events)) = other.next().await else {
                panic!("event {n} is missing");
            };
            assert_eq!(events[0].value(), n.to_string().as_bytes());
        }
        etcd.shutdown().await;
    }
}

#[actix::test]
async fn stopped_actor_cancels_idle_watch() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let slow = SlowActor {
        consumed: Consumed::default(),
        stop_at: 0,
        panic_at: 0,
    };
    let actor = slow.start();
    let open = etcd.watch("idle").deliver_to(actor.clone().recipient());
    open.await.unwrap().detach();
    wait_for_watchers(&cluster, 1.0).await;
    actor.do_send(Stop);
    wait_for_watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}

/// Handles one item per permit, and records the values of all events and the end.
struct GatedActor {
    permits: Arc<Semaphore>,
    handled: mpsc::UnboundedSender<String>,
}

impl Actor for GatedActor {
    type Context = Context<Self>;
}

impl Handler<WatchEvent> for GatedActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, item: WatchEvent, _: &mut Context<Self>) -> ResponseFuture<()> {
        let (permits, handled) = (self.permits.clone(), self.handled.clone());
        Box::pin(async move {
            permits.acquire().await.unwrap().forget();
            let text = match item {
                WatchEvent::Events(events) => String::from_utf8_lossy(events[0].value()).into(),
                WatchEvent::Ended(reason) => reason.to_string(),
                other => format!("{other:?}"),
            };
            // The test may have ended.
            let _ = handled.send(text);
        })
    }
}

#[actix::test]
async fn slow_actor_receives_end_after_shutdown() {
    let cluster = Cluster::start(1).await;
    let etcd = connect(cluster.endpoints()).await;
    let permits = Arc::new(Semaphore::new(0));
    let (handled, mut received) = mpsc::unbounded_channel();
    let actor = GatedActor {
        permits: permits.clone(),
        handled,
    };
    let open = etcd.watch("k").deliver_to(actor.start().recipient());
    open.await.unwrap().detach();
    let mut other = etcd.watch("k").await.unwrap();
    for n in 0..5 {
        let put = etcd.put("k", n.to_string()).await.unwrap();
        assert_eq!(next_change(&mut other).await.0, put.header.revision);
    }
    etcd.shutdown().await;
    assert!(received.try_recv().is_err(), "the actor has no permit yet");
    permits.add_permits(100);
    let mut items = Vec::new();
    while let Ok(item) = timeout(WATCH_TIMEOUT, received.recv()).await {
        // The sender is dropped with the actor, after its last delivery.
        let Some(item) = item else { break };
        items.push(item);
    }
    assert_eq!(items, ["0", "1", "2", "3", "4", "the client was shut down"]);
}

#[actix::test]
async fn watch_delivered_during_shutdown_ends_once() {
    let cluster = Cluster::start(1).await;
    for _ in 0..20 {
        let etcd = connect(cluster.endpoints()).await;
        let (handled, mut received) = mpsc::unbounded_channel();
        let actor = GatedActor {
            permits: Arc::new(Semaphore::new(100)),
            handled,
        };
        let opening = etcd.watch("k").deliver_to(actor.start().recipient());
        let shutdown = async {
            wait_for_watchers(&cluster, 1.0).await;
            etcd.shutdown().await;
        };
        let (opened, ()) = tokio::join!(opening, shutdown);
        let mut ends = 0;
        while let Some(item) = timeout(WATCH_TIMEOUT, received.recv()).await.unwrap() {
            assert_eq!(item, "the client was shut down");
            ends += 1;
        }
        assert_eq!(ends, usize::from(opened.is_ok()));
    }
}
