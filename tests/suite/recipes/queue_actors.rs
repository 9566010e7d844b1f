//! Queues by messages: pushing, and items that are delivered to actors.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use actix::{Actor, ActorContext, Context, Handler, ResponseFuture};
use actix_etcd::{
    Client, ErrorKind, Etcd,
    recipes::queue::{ItemError, QueueEvent, queue},
};
use testbed::Cluster;
use tokio::sync::Semaphore;

use crate::support::{
    connected_cluster::StartWithClient,
    store_server::{ScriptedStore, TxnFate, puts_below},
    wait::{until, until_async},
};

#[derive(Default)]
struct Work {
    started: Mutex<Vec<String>>,
    ended: Mutex<Option<ErrorKind>>,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

/// Handles an item per permit. Fails at the first attempt of items named `fail`, and stops at `stop`.
struct Worker {
    work: Arc<Work>,
    permits: Arc<Semaphore>,
}

impl Actor for Worker {
    type Context = Context<Self>;
}

impl Handler<QueueEvent> for Worker {
    type Result = ResponseFuture<Result<(), ItemError>>;

    fn handle(&mut self, event: QueueEvent, ctx: &mut Context<Self>) -> Self::Result {
        let (work, permits) = (self.work.clone(), self.permits.clone());
        let item = match event {
            QueueEvent::Item(item) => item,
            QueueEvent::Ended(error) => {
                *work.ended.lock().unwrap() = Some(error.kind());
                return Box::pin(async { Ok(()) });
            }
            _ => return Box::pin(async { Ok(()) }),
        };
        if item.value() == "stop" {
            ctx.stop();
        }
        Box::pin(async move {
            let value = String::from_utf8(item.value().to_vec())?;
            work.started.lock().unwrap().push(value.clone());
            let running = work.running.fetch_add(1, SeqCst) + 1;
            work.most_running.fetch_max(running, SeqCst);
            permits.acquire().await?.forget();
            work.running.fetch_sub(1, SeqCst);
            if value == "own" {
                item.done_with(actix_etcd::kv::put("effect", "1")).await?;
            }
            if value == "fail" && item.attempt() == 1 {
                return Err("the first attempt fails".into());
            }
            Ok(())
        })
    }
}

fn start_worker(permits: usize) -> (actix::Addr<Worker>, Arc<Work>, Arc<Semaphore>) {
    let (work, permits) = (Arc::<Work>::default(), Arc::new(Semaphore::new(permits)));
    let worker = Worker {
        work: work.clone(),
        permits: permits.clone(),
    };
    (worker.start(), work, permits)
}

async fn is_empty(etcd: &Client) -> bool {
    let left = etcd.get("jobs/").prefix().count_only().await.unwrap();
    let claims = etcd
        .get("__jobs/claims/")
        .prefix()
        .count_only()
        .await
        .unwrap();
    left.count + claims.count == 0
}

#[actix::test]
async fn handled_items_are_completed_and_failed_ones_return() {
    let (_cluster, client) = Cluster::start_with_client(1).await;
    let etcd = Etcd::new(client.clone()).start();
    for value in ["a", "fail", "own", "b"] {
        etcd.send(queue("jobs").push(value)).await.unwrap().unwrap();
    }
    let (worker, work, _) = start_worker(100);
    let jobs = queue("jobs").visibility(Duration::from_secs(1));
    let subscription = etcd.send(jobs.deliver_to(worker.recipient()));
    let subscription = subscription.await.unwrap().unwrap();
    until_async("all items are completed", async || is_empty(&client).await).await;
    assert_eq!(
        *work.started.lock().unwrap(),
        ["a", "fail", "own", "b", "fail"]
    );
    assert_eq!(work.most_running.load(SeqCst), 1);
    let effect = client.get("effect").await.unwrap();
    assert_eq!(effect.first().unwrap().version, 1);
    drop(subscription);
    let line_left = async || {
        let line = client.get("__jobs/takers/").prefix().await.unwrap();
        line.kvs.is_empty()
    };
    until_async("a dropped subscription leaves the line", line_left).await;
}

#[actix::test]
async fn concurrency_bounds_delivered_items() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for n in 0..7 {
        etcd.queue("jobs").push(n.to_string()).await.unwrap();
    }
    let (worker, work, permits) = start_worker(0);
    let jobs = etcd.queue("jobs").concurrency(3);
    let subscription = jobs.deliver_to(worker.recipient()).await.unwrap();
    let started = |count| {
        let work = work.clone();
        move || work.started.lock().unwrap().len() == count
    };
    until("three items are delivered", started(3)).await;
    let claims = etcd.get("__jobs/claims/").prefix().await.unwrap();
    assert_eq!(claims.kvs.len(), 3);
    permits.add_permits(2);
    until("two more items are delivered", started(5)).await;
    // Items in work are still completed.
    drop(subscription);
    permits.add_permits(100);
    let left = async || etcd.queue("jobs").len().await.unwrap() == 2;
    until_async("items in work are completed", left).await;
    assert_eq!(work.most_running.load(SeqCst), 3);
    assert_eq!(work.started.lock().unwrap().len(), 5);
}

#[actix::test]
async fn delivery_ends_with_actor_or_client() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let (worker, work, _) = start_worker(100);
    let _subscription = etcd
        .queue("jobs")
        .deliver_to(worker.recipient())
        .await
        .unwrap();
    etcd.queue("jobs").push("stop").await.unwrap();
    until("the actor has the item", || {
        work.started.lock().unwrap().len() == 1
    })
    .await;
    // The next item is for another taker.
    etcd.queue("jobs").push("next").await.unwrap();
    let ending = Client::connect(cluster.endpoints()).await.unwrap();
    let (worker, other_work, _) = start_worker(100);
    let _other = ending
        .queue("jobs")
        .deliver_to(worker.clone().recipient())
        .await
        .unwrap();
    until("another actor has the next item", || {
        other_work
            .started
            .lock()
            .unwrap()
            .contains(&"next".to_owned())
    })
    .await;
    ending.shutdown().await;
    until("the actor is told the reason", || {
        other_work.ended.lock().unwrap().is_some()
    })
    .await;
    assert_eq!(
        *other_work.ended.lock().unwrap(),
        Some(ErrorKind::SessionLost)
    );
    drop(worker);
}

#[actix::test]
async fn delivery_waits_while_the_cluster_has_no_space() {
    let (store, etcd) = ScriptedStore::start().await;
    let (worker, work, _permits) = start_worker(1);
    let jobs = etcd.queue("jobs");
    jobs.push("a").await.unwrap();
    let mut is_first = true;
    store.on_txn(move |request| {
        if puts_below(request, b"__jobs/claims/") && std::mem::take(&mut is_first) {
            return TxnFate::Fails(8, "etcdserver: mvcc: database space exceeded");
        }
        TxnFate::Applied
    });
    let _subscription = jobs.deliver_to(worker.recipient()).await.unwrap();
    let is_handled = || !work.started.lock().unwrap().is_empty();
    let has_ended = || work.ended.lock().unwrap().is_some();
    until("the item is handled", || is_handled() || has_ended()).await;
    assert!(!has_ended());
}
