//! Hedging: a late request that may be repeated is also sent to another member, and the first response wins.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, ErrorKind, Outcome,
    balancer::Pinned,
    client::{ClientBuilder, Liveness},
    proto,
    retry::{BudgetLimits, NoRetry, ServiceConfig},
};
use testbed::{Call, Reply, ScriptedServer};
use tokio::sync::Notify;

use crate::support::{
    auth_cluster::{AUTHENTICATE, login_reply},
    lease_server::{GRANT, REVOKE},
    quiet_window::ready_members,
    scripted_put::{PUT, RANGE, put_reply, range_reply},
    wait::{TEST_TIMEOUT, until},
};

/// Longer than the delay of a hedge, shorter than the default timeout.
const SLOW: Duration = Duration::from_millis(3300);

/// Starts servers that reply to reads by the script, which gets the number of the read at all servers together.
async fn start_readers<const N: usize>(
    script: impl Fn(usize) -> Reply + Clone + Send + Sync + 'static,
) -> [ScriptedServer; N] {
    let reads = Arc::new(AtomicUsize::new(0));
    let mut servers = Vec::new();
    for _ in 0..N {
        let (server, script, reads) =
            (ScriptedServer::start().await, script.clone(), reads.clone());
        server.on(RANGE, move |_| script(reads.fetch_add(1, Ordering::SeqCst)));
        servers.push(server);
    }
    servers.try_into().ok().unwrap()
}

/// Connects to the servers and waits until all of them are ready.
async fn connect(
    servers: &[ScriptedServer],
    configure: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Client {
    let builder = Client::builder(servers.iter().map(ScriptedServer::endpoint));
    let etcd = configure(builder).connect().await.unwrap();
    until("all members are ready", || {
        ready_members(&etcd) == servers.len()
    })
    .await;
    etcd
}

async fn connect_all(servers: &[ScriptedServer]) -> Client {
    connect(servers, |builder| builder).await
}

/// Returns the number of requests to this path at all servers.
fn count(servers: &[ScriptedServer], path: &str) -> usize {
    servers.iter().map(|server| server.count(path)).sum()
}

#[tokio::test]
async fn slow_read_with_one_endpoint_is_sent_once() {
    let servers = start_readers::<1>(|_| range_reply().after(SLOW)).await;
    let etcd = connect_all(&servers).await;
    etcd.get("k").await.unwrap();
    assert_eq!(count(&servers, RANGE), 1);
}

#[tokio::test]
async fn read_slow_on_one_member_succeeds_on_another() {
    let servers = start_readers::<2>(|nth| match nth {
        0 => Reply::hang(),
        _ => range_reply(),
    })
    .await;
    let etcd = connect_all(&servers).await;
    etcd.get("k").await.unwrap();
    assert_eq!([servers[0].count(RANGE), servers[1].count(RANGE)], [1, 1]);
    until("the late copy is reset", || {
        servers[0].cancelled() + servers[1].cancelled() == 1
    })
    .await;
}

#[tokio::test]
async fn read_slow_on_every_member_is_sent_twice() {
    let servers = start_readers::<3>(|_| range_reply().after(SLOW)).await;
    let etcd = connect_all(&servers).await;
    let started = Instant::now();
    etcd.get("k").await.unwrap();
    let elapsed = started.elapsed();
    assert!(elapsed >= SLOW, "{elapsed:?}");
    assert_eq!(count(&servers, RANGE), 2);
}

#[tokio::test]
async fn hedged_read_keeps_pinned_member() {
    let servers = start_readers::<3>(|_| range_reply()).await;
    for server in &servers {
        server.on(PUT, |_| put_reply());
    }
    // A probe that is late on a busy machine does not move the policy to another member.
    let liveness = Liveness::default().unresponsive_after(TEST_TIMEOUT);
    let etcd = connect(&servers, |builder| {
        builder.balance(Pinned::warm()).liveness(liveness)
    })
    .await;
    // Puts are not hedged, so they show to which member the policy is pinned.
    let put = async || etcd.put("k", "v").timeout(TEST_TIMEOUT).await.unwrap();
    put().await;
    let pinned = servers.iter().find(|server| server.count(PUT) == 1);
    let pinned = pinned.unwrap();
    pinned.on(RANGE, |_| Reply::hang());
    etcd.get("k").timeout(TEST_TIMEOUT).await.unwrap();
    assert!(count(&servers, RANGE) > pinned.count(RANGE), "no hedge");
    for _ in 0..20 {
        put().await;
    }
    assert_eq!(pinned.count(PUT), 21);
}

#[tokio::test]
async fn first_copy_wins_if_it_responds_first() {
    let servers = start_readers::<2>(|nth| match nth {
        0 => range_reply().after(Duration::from_secs(1)),
        _ => Reply::hang(),
    })
    .await;
    let etcd = connect_all(&servers).await;
    etcd.get("k").await.unwrap();
    assert_eq!(count(&servers, RANGE), 2);
    until("the second copy is reset", || {
        servers[0].cancelled() + servers[1].cancelled() == 1
    })
    .await;
}

#[tokio::test]
async fn failed_copy_leaves_the_other_in_flight() {
    let servers = start_readers::<2>(|nth| match nth {
        0 => range_reply().after(Duration::from_secs(2)),
        _ => Reply::status(14, "etcdserver: request timed out"),
    })
    .await;
    let etcd = connect_all(&servers).await;
    etcd.get("k").await.unwrap();
    let slow = servers.iter().filter(|server| server.count(RANGE) == 1);
    assert!(slow.count() >= 1, "the slow copy is not repeated");
    assert!(count(&servers, RANGE) >= 2, "no hedge");
}

#[tokio::test]
async fn failed_first_copy_leaves_the_hedge_in_flight() {
    let first_fails_after = Duration::from_secs(2);
    let servers = start_readers::<2>(move |nth| match nth {
        0 => Reply::close_connection().after(first_fails_after),
        _ => range_reply().after(Duration::from_millis(2200)),
    })
    .await;
    let etcd = connect_all(&servers).await;
    etcd.get("k").await.unwrap();
    let mut sent: Vec<_> = servers
        .iter()
        .flat_map(|server| server.calls(RANGE))
        .map(|call| call.at)
        .collect();
    sent.sort();
    assert_eq!(sent.len(), 2, "the call waits for the hedge");
    assert!(sent[1] - sent[0] < first_fails_after, "no hedge");
    let cancelled = servers[0].cancelled() + servers[1].cancelled();
    assert_eq!(cancelled, 0, "the hedge was cancelled");
}

#[tokio::test]
async fn third_copy_follows_a_failed_one() {
    let servers = start_readers::<3>(|nth| match nth {
        0 => Reply::hang(),
        1 => Reply::status(14, "etcdserver: request timed out"),
        _ => range_reply(),
    })
    .await;
    let etcd = connect_all(&servers).await;
    etcd.get("k").await.unwrap();
    for server in &servers {
        assert_eq!(server.count(RANGE), 1, "each member gets one copy");
    }
}

#[tokio::test]
async fn refusal_of_one_copy_ends_the_call() {
    let servers = start_readers::<2>(|nth| match nth {
        0 => Reply::hang(),
        _ => Reply::status(11, "etcdserver: mvcc: required revision has been compacted"),
    })
    .await;
    let etcd = connect_all(&servers).await;
    let error = etcd.get("k").revision(1).await.unwrap_err();
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Compacted, 2));
}

#[tokio::test]
async fn hedges_stop_when_the_budget_is_used_up() {
    let servers = start_readers::<2>(|_| range_reply().after(Duration::from_millis(1500))).await;
    let mut limits = BudgetLimits::default();
    (limits.burst, limits.per_second, limits.per_success) = (6, 1, 0.0);
    let etcd = connect(&servers, |builder| builder.retry_budget(limits)).await;
    let reads: Vec<_> = (0..20)
        .map(|_| tokio::spawn(etcd.get("k").into_future()))
        .collect();
    for read in reads {
        read.await.unwrap().unwrap();
    }
    let hedges = count(&servers, RANGE) - 20;
    // Half of the burst; the budget refills by one per second.
    assert!((3..=5).contains(&hedges), "{hedges} hedges");
}

#[tokio::test]
async fn hedging_can_be_turned_off() {
    let script = |nth| match nth {
        0 => range_reply().after(Duration::from_millis(1500)),
        _ => range_reply(),
    };
    let config = r#"{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":2,"initialBackoff":"0.1s",
        "maxBackoff":"1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}"#;
    let with_config = |attempts: &str| {
        let config = config.replace("\"maxAttempts\":2", &format!("\"maxAttempts\":{attempts}"));
        ServiceConfig::from_json(&config).unwrap()
    };
    let builders: [(&str, &dyn Fn(ClientBuilder) -> ClientBuilder, usize); 4] = [
        ("by the option", &|builder| builder.hedging(false), 1),
        ("by the policy", &|builder| builder.retry(NoRetry), 1),
        ("by default", &|builder| builder, 2),
        (
            "by the service config",
            &|builder| builder.retry(with_config("2")),
            2,
        ),
    ];
    for (name, configure, sent) in builders {
        let servers = start_readers::<2>(script).await;
        let etcd = connect(&servers, configure).await;
        etcd.get("k").await.unwrap();
        assert_eq!(count(&servers, RANGE), sent, "{name}");
    }
    // A failed attempt and a copy in flight are all that `maxAttempts` allows.
    let servers = start_readers::<2>(|nth| match nth {
        0 => Reply::status(14, "etcdserver: request timed out"),
        _ => range_reply().after(Duration::from_millis(1500)),
    })
    .await;
    let etcd = connect(&servers, |builder| builder.retry(with_config("2"))).await;
    etcd.get("k").await.unwrap();
    assert_eq!(count(&servers, RANGE), 2);
}

#[tokio::test]
async fn slow_write_is_not_hedged() {
    let servers = [ScriptedServer::start().await, ScriptedServer::start().await];
    for server in &servers {
        server.on(PUT, |_| put_reply().after(Duration::from_millis(1500)));
    }
    let etcd = connect_all(&servers).await;
    etcd.put("k", "v").await.unwrap();
    assert_eq!(count(&servers, PUT), 1);
}

#[tokio::test]
async fn read_that_names_its_member_is_not_hedged() {
    const HASH: &str = "/etcdserverpb.Maintenance/HashKV";
    let servers = [ScriptedServer::start().await, ScriptedServer::start().await];
    for server in &servers {
        server.on(HASH, |_| {
            let response = proto::HashKvResponse {
                header: Some(proto::ResponseHeader::default()),
                ..Default::default()
            };
            Reply::message(&response).after(Duration::from_millis(1500))
        });
    }
    let etcd = connect_all(&servers).await;
    let hash = etcd.maintenance().hash_kv(0).at(servers[0].endpoint());
    hash.await.unwrap();
    assert_eq!([servers[0].count(HASH), servers[1].count(HASH)], [1, 0]);
}

/// Starts two servers. The first request to this path hangs, the second gets the reply.
async fn start_with_hanging_request(
    path: &str,
    reply: impl Fn(Call) -> Reply + Clone + Send + Sync + 'static,
) -> [ScriptedServer; 2] {
    let servers = [ScriptedServer::start().await, ScriptedServer::start().await];
    let requests = Arc::new(AtomicUsize::new(0));
    for server in &servers {
        let (reply, requests) = (reply.clone(), requests.clone());
        server.on(path, move |call| {
            match requests.fetch_add(1, Ordering::SeqCst) {
                0 => Reply::hang(),
                _ => reply(call),
            }
        });
    }
    servers
}

#[tokio::test]
async fn login_is_hedged() {
    let servers = start_with_hanging_request(AUTHENTICATE, |_| login_reply("token")).await;
    let builder = Client::builder(servers.iter().map(ScriptedServer::endpoint));
    let etcd = builder.credentials("ann", "word").connect().await;
    etcd.unwrap();
    assert_eq!(count(&servers, AUTHENTICATE), 2);
}

#[tokio::test]
async fn hedged_revoke_that_finds_no_lease_succeeds() {
    let not_found = |_: Call| Reply::status(5, "etcdserver: requested lease not found");
    let servers = start_with_hanging_request(REVOKE, not_found).await;
    let etcd = connect_all(&servers).await;
    etcd.revoke(7).await.unwrap();
    assert_eq!(count(&servers, REVOKE), 2);
    let error = etcd.revoke(7).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::LeaseNotFound, Outcome::Rejected),
        "no copy in flight can have revoked it"
    );
}

#[tokio::test]
async fn hedged_grant_that_finds_its_lease_succeeds() {
    let exists = |_: Call| Reply::status(9, "etcdserver: lease already exists");
    let servers = start_with_hanging_request(GRANT, exists).await;
    let etcd = connect_all(&servers).await;
    let lease = etcd.lease(Duration::from_secs(10)).await.unwrap();
    let requested: Vec<i64> = servers
        .iter()
        .flat_map(|server| server.calls(GRANT))
        .map(|call| {
            let request: proto::LeaseGrantRequest = prost::Message::decode(call.body).unwrap();
            request.id
        })
        .collect();
    assert_eq!(requested, [lease.id(); 2], "both copies have the same id");
}

#[tokio::test]
async fn refused_grant_with_copy_in_flight_ends_unknown() {
    let too_large = |_: Call| Reply::status(11, "etcdserver: too large lease TTL");
    let servers = start_with_hanging_request(GRANT, too_large).await;
    let etcd = connect_all(&servers).await;
    let error = etcd.lease(Duration::from_secs(10)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::LeaseTtlTooLarge, Outcome::Unknown)
    );
}

/// Limit of streams with which the client sends one request at a time. It reserves the other stream for probes.
const ONE_REQUEST: u32 = 2;

#[tokio::test]
async fn waiting_write_goes_to_first_free_stream() {
    let servers = [ScriptedServer::start().await, ScriptedServer::start().await];
    let end_puts = [Arc::new(Notify::new()), Arc::new(Notify::new())];
    for (server, end_put) in servers.iter().zip(&end_puts) {
        server.set_max_concurrent_streams(ONE_REQUEST);
        let end_put = end_put.clone();
        server.on(PUT, move |_| {
            let end_put = end_put.clone();
            Reply::streaming(async move |mut sender, _| {
                end_put.notified().await;
                let response = proto::PutResponse {
                    header: Some(proto::ResponseHeader::default()),
                    ..Default::default()
                };
                let _ = sender.send(&response).await;
            })
        });
    }
    let etcd = connect_all(&servers).await;
    let put = || tokio::spawn(etcd.put("k", "v").timeout(TEST_TIMEOUT).into_future());
    let occupying = [put(), put()];
    until("every member serves a request", || {
        servers.iter().all(|server| server.count(PUT) == 1)
    })
    .await;
    let waiting: Vec<_> = (0..8).map(|_| put()).collect();
    for sent in 3..=10 {
        end_puts[1].notify_one();
        until("a waiting request is sent", || count(&servers, PUT) == sent).await;
    }
    end_puts[1].notify_one();
    for put in waiting {
        put.await.unwrap().unwrap();
    }
    assert_eq!([servers[0].count(PUT), servers[1].count(PUT)], [1, 9]);
    end_puts[0].notify_one();
    for put in occupying {
        put.await.unwrap().unwrap();
    }
}
