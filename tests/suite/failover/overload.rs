//! More requests at once than the cluster or the client accepts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{Client, ErrorKind, Outcome, proto::PutRequest};
use prost::Message;
use testbed::{Cluster, Reply, ScriptedServer};
use tokio::task::JoinSet;

use crate::support::{
    scripted_put::{PUT, put_reply},
    wait::{TEST_TIMEOUT, until, until_async},
};

/// Writes `total` keys with `callers` concurrent callers. Returns the errors.
async fn write_keys(etcd: &Client, callers: usize, total: usize) -> Vec<String> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (etcd, next) = (etcd.clone(), next.clone());
        tasks.spawn(async move {
            let mut errors = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    return errors;
                }
                let put = etcd
                    .put(format!("k{number}"), "v")
                    .timeout(TEST_TIMEOUT * 4);
                if let Err(error) = put.await {
                    errors.push(error.to_string());
                }
            }
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

/// Returns the number of puts that the members have rejected.
async fn rejected_puts(cluster: &Cluster) -> f64 {
    let handled = "grpc_server_handled_total{grpc_method=\"Put\"}";
    let accepted = "grpc_server_handled_total{grpc_method=\"Put\",grpc_code=\"OK\"}";
    let mut rejected = 0.0;
    for member in cluster.members() {
        rejected += member.metric(handled).await.unwrap_or(0.0);
        rejected -= member.metric(accepted).await.unwrap_or(0.0);
    }
    rejected
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_callers_do_not_overload_etcd() {
    // An election on a busy machine would cost writes.
    let cluster = Cluster::builder().members(3).election(500, 5_000);
    let cluster = cluster.start().await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let started = Instant::now();
    let errors = write_keys(&etcd, 10_000, 50_000).await;
    println!("50,000 puts in {:?}", started.elapsed());
    let first = errors.first();
    assert!(first.is_none(), "{} failed, first: {first:?}", errors.len());
    let rejected = rejected_puts(&cluster).await;
    assert!(rejected < 1.0, "{rejected} puts were rejected");
}

#[tokio::test]
async fn requests_beyond_limit_wait_in_order() {
    const DELAY: Duration = Duration::from_millis(50);
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| put_reply().after(DELAY));
    let builder = Client::builder([server.endpoint()]).max_in_flight(1);
    let etcd = builder.connect().await.unwrap();
    let mut puts = JoinSet::new();
    for number in 0..10_u8 {
        puts.spawn(etcd.put([number], "v").timeout(TEST_TIMEOUT).into_future());
        tokio::task::yield_now().await;
    }
    for put in puts.join_all().await {
        put.unwrap();
    }
    let calls = server.calls(PUT);
    let keys: Vec<u8> = calls
        .iter()
        .map(|call| PutRequest::decode(call.body.clone()).unwrap().key[0])
        .collect();
    assert!(keys.iter().copied().eq(0..10), "{keys:?}");
    for pair in calls.windows(2) {
        assert!(pair[1].at - pair[0].at >= DELAY, "two requests in flight");
    }
}

#[tokio::test]
async fn request_beyond_limit_is_not_sent_after_deadline() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| Reply::hang());
    let builder = Client::builder([server.endpoint()]).max_in_flight(1);
    let etcd = builder.connect().await.unwrap();
    let first = tokio::spawn(etcd.put("k", "v").timeout(TEST_TIMEOUT).into_future());
    until("the request has arrived", || server.count(PUT) == 1).await;
    let short = Duration::from_millis(200);
    let error = etcd.put("k", "v").timeout(short).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::DeadlineExceeded, Outcome::NotSent)
    );
    assert!(error.to_string().contains("max_in_flight"), "{error}");
    assert_eq!(server.count(PUT), 1);
    first.abort();
}

#[tokio::test]
async fn waiting_lock_does_not_count_as_in_flight() {
    let cluster = Cluster::start(1).await;
    let builder = Client::builder(cluster.endpoints()).max_in_flight(1);
    let etcd = builder.connect().await.unwrap();
    let ttl = Duration::from_secs(60);
    let (first, second) = (
        etcd.lease(ttl).await.unwrap(),
        etcd.lease(ttl).await.unwrap(),
    );
    let locks = etcd.server_locks();
    let held = locks.lock("door", first.id()).await.unwrap();
    let waiting = locks.lock("door", second.id()).timeout(TEST_TIMEOUT);
    let waiting = tokio::spawn(waiting.into_future());
    until_async("the lock waits", async || {
        let entries = etcd.get("door/").prefix().await.unwrap();
        entries.kvs.len() == 2
    })
    .await;
    etcd.put("k", "v").await.unwrap();
    locks.unlock(&held.key).await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn rejection_by_etcd_is_retried_later() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |call| match call.nth {
        0..3 => Reply::status(8, "etcdserver: too many requests"),
        _ => put_reply(),
    });
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    etcd.put("k", "v").timeout(TEST_TIMEOUT).await.unwrap();
    let calls = server.calls(PUT);
    let pauses: Vec<_> = calls
        .windows(2)
        .map(|pair| pair[1].at - pair[0].at)
        .collect();
    assert_eq!(pauses.len(), 3);
    assert!(
        pauses
            .iter()
            .all(|pause| *pause >= Duration::from_millis(20)),
        "{pauses:?}"
    );
}
