//! Consumers that are slow, stop or panic.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::{Actor, ActorContext, Context, Handler, ResponseFuture};
use actix_etcd::{Client, WatchItem};
use testbed::{
    Cluster,
    validators::{self, Record, Request},
};

use crate::support::{
    watch_items::{TEST_TIMEOUT, next_change, next_item},
    watch_recorder::{actual_history, to_record},
    watcher_metrics::wait_for_watchers,
};

#[tokio::test]
async fn slow_reader_lags_alone_without_loss() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let open = etcd.watch("k").buffer(20).notices();
    let mut slow = open.await.unwrap();
    let mut quick = etcd.watch("k").await.unwrap();
    let mut last = 0;
    for n in 0..300 {
        last = etcd.put("k", n.to_string()).await.unwrap().header.revision;
        assert_eq!(next_change(&mut quick).await.0, last);
    }
    // The slow one is not on the server any more.
    wait_for_watchers(&cluster, 1.0).await;
    let mut records = Vec::new();
    while slow.revision() < last {
        records.extend(to_record(next_item(&mut slow).await));
    }
    assert!(records.contains(&Record::Lagging));
    let history = actual_history(&cluster).await;
    validators::all(&Request::key("k", 0), &records, &history).unwrap();
    let events = |record: &&Record| matches!(record, Record::Events { .. });
    assert_eq!(records.iter().filter(events).count(), 300);
    wait_for_watchers(&cluster, 2.0).await;
    etcd.shutdown().await;
}

#[derive(Default, Clone)]
struct Seen {
    revision: Arc<AtomicI64>,
    items: Arc<AtomicUsize>,
    busy: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Seen {
    async fn wait(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let wait = async {
            while !done(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(TEST_TIMEOUT, wait).await;
        assert!(waited.is_ok(), "never: {what}");
    }
}

/// Takes a moment for each item; stops or panics at the given one.
struct Slow {
    seen: Seen,
    stop_at: usize,
    panic_at: usize,
}

impl Actor for Slow {
    type Context = Context<Self>;
}

impl Handler<WatchItem> for Slow {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, item: WatchItem, ctx: &mut Context<Self>) -> ResponseFuture<()> {
        let seen = self.seen.clone();
        let nth = seen.items.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(nth != self.panic_at, "asked to panic");
        if nth == self.stop_at {
            ctx.stop();
        }
        assert!(
            !seen.busy.swap(true, Ordering::SeqCst),
            "an item came before the last was handled"
        );
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            seen.busy.store(false, Ordering::SeqCst);
            match item {
                WatchItem::Events(events) => {
                    seen.revision.store(events.revision(), Ordering::SeqCst);
                }
                WatchItem::Ended(_) => seen.ended.store(true, Ordering::SeqCst),
                _ => {}
            }
        })
    }
}

#[derive(actix::Message)]
#[rtype(result = "()")]
struct Stop;

impl Handler<Stop> for Slow {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

#[actix::test]
async fn slow_actor_receives_every_item_in_turn() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let seen = Seen::default();
    let slow = Slow {
        seen: seen.clone(),
        stop_at: 0,
        panic_at: 0,
    };
    let recipient = slow.start().recipient();
    let handle = etcd.watch("k").buffer(10).send_to(recipient).await.unwrap();
    let mut last = 0;
    for n in 0..100 {
        last = etcd.put("k", n.to_string()).await.unwrap().header.revision;
    }
    let all = |seen: &Seen| seen.revision.load(Ordering::SeqCst) == last;
    seen.wait("the last event", all).await;
    assert_eq!(seen.items.load(Ordering::SeqCst), 100);
    assert_eq!(handle.revision(), last);
    drop(handle);
    seen.wait("the last item", |seen| seen.ended.load(Ordering::SeqCst))
        .await;
    assert_eq!(seen.items.load(Ordering::SeqCst), 101);
    wait_for_watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}

#[actix::test]
async fn stopped_actor_cancels_only_its_own_watch() {
    for (stop_at, panic_at) in [(3, 0), (0, 3)] {
        let cluster = Cluster::start(1).await;
        let etcd = Client::connect(cluster.endpoints()).await.unwrap();
        let seen = Seen::default();
        let slow = Slow {
            seen: seen.clone(),
            stop_at,
            panic_at,
        };
        let recipient = slow.start().recipient();
        etcd.watch("k").send_to(recipient).await.unwrap().detach();
        let mut neighbour = etcd.watch("k").await.unwrap();
        wait_for_watchers(&cluster, 2.0).await;
        for n in 0..10 {
            etcd.put("k", n.to_string()).await.unwrap();
        }
        wait_for_watchers(&cluster, 1.0).await;
        assert_eq!(seen.items.load(Ordering::SeqCst), 3);
        for n in 0..10 {
            let Some(WatchItem::Events(events)) = neighbour.next().await else {
                panic!("it lacks {n}");
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
    let slow = Slow {
        seen: Seen::default(),
        stop_at: 0,
        panic_at: 0,
    };
    let actor = slow.start();
    let open = etcd.watch("quiet").send_to(actor.clone().recipient());
    open.await.unwrap().detach();
    wait_for_watchers(&cluster, 1.0).await;
    actor.do_send(Stop);
    wait_for_watchers(&cluster, 0.0).await;
    etcd.shutdown().await;
}
