//! Consumers that are slow, stop or panic.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::{Actor, ActorContext, Context, Handler, ResponseFuture};
use actix_etcd::{Client, WatchEvent};
use testbed::{
    Cluster,
    validators::{self, Record, Request},
};

use crate::support::{
    watch_items::{WATCH_TIMEOUT, next_change, next_item},
    watch_recorder::{actual_history, to_record},
    watcher_metrics::wait_for_watchers,
};

#[tokio::test]
async fn slow_reader_pauses_alone_without_loss() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
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
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
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
        let etcd = Client::connect(cluster.endpoints()).await.unwrap();
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
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
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
