//! Limits and rewriting of an L7 proxy that works as configured: no call fails.

use std::time::Duration;

use actix_etcd::{Client, ErrorKind};
use testbed::{Cluster, Failure, L7Action, L7Proxy, STATUS};

use crate::support::{
    auth_cluster::{login_count, start_with_auth},
    lease_recorder::LeaseRecorder,
    traffic::{Readers, Writers, check_applied_at_most_once},
    wait::{hold, until},
    watched_revisions::WatchedRevisions,
};

const PREFIX: &str = "w/";
const SECOND: Duration = Duration::from_secs(1);

async fn start() -> (Cluster, L7Proxy, Client) {
    let cluster = Cluster::start(3).await;
    let proxy = L7Proxy::start(&cluster).await;
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    etcd.put("read", "me").await.unwrap();
    (cluster, proxy, etcd)
}

/// Runs reads and writes until `enough`, with a watch and a lease. All must succeed.
async fn check_no_failure(cluster: &Cluster, etcd: &Client, enough: impl AsyncFn(&Writers)) {
    let watched = WatchedRevisions::start(etcd, PREFIX).await;
    let lease = etcd.lease(5 * SECOND).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(cluster));
    let writers = Writers::start(etcd, 3, PREFIX);
    let readers = Readers::start(etcd, 2, "read");
    enough(&writers).await;
    let writes = writers.finish().await;
    let failed_reads = readers.finish().await;
    assert!(failed_reads.is_empty(), "{failed_reads:?}");
    for write in &writes {
        assert!(write.result.is_ok(), "{write:?}");
    }
    check_applied_at_most_once(cluster, PREFIX, &writes).await;
    watched.check(cluster).await;
    recorder.check_alive().await;
}

#[tokio::test]
async fn one_upstream_per_request_needs_one_connection() {
    let (cluster, proxy, etcd) = start().await;
    check_no_failure(&cluster, &etcd, async |writers| {
        writers.wait_for_writes(300).await;
    })
    .await;
    for member in 0..3 {
        assert!(proxy.forwarded(member) > 50, "member {member} is not used");
    }
    // Responses of different members are no reason to leave the endpoint.
    assert_eq!(proxy.link().accepted(), 1);
}

#[tokio::test]
async fn request_limit_fails_no_call() {
    let (cluster, proxy, etcd) = start().await;
    proxy.set_max_requests(20);
    proxy.link().reset_now();
    until("the client has connected again", || {
        proxy.link().accepted() > 1
    })
    .await;
    etcd.wait_ready(10 * SECOND).await.unwrap();
    check_no_failure(&cluster, &etcd, async |writers| {
        writers.wait_for_writes(200).await;
    })
    .await;
    assert!(proxy.go_aways() >= 5, "{} GOAWAYs", proxy.go_aways());
}

#[tokio::test]
async fn drained_connection_costs_no_event_and_no_lease() {
    let (cluster, proxy, etcd) = start().await;
    // The streams of watches and leases outlast the drain timeout, so the proxy breaks them.
    proxy.set_drain_timeout(Duration::from_millis(300));
    proxy.set_max_requests(200);
    proxy.link().reset_now();
    until("the client has connected again", || {
        proxy.link().accepted() > 1
    })
    .await;
    etcd.wait_ready(10 * SECOND).await.unwrap();
    let watched = WatchedRevisions::start(&etcd, PREFIX).await;
    let lease = etcd.lease(5 * SECOND).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    let writers = Writers::start(&etcd, 3, PREFIX);
    until("connections are drained", || proxy.go_aways() >= 5).await;
    let writes = writers.finish().await;
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
    watched.check(&cluster).await;
    recorder.check_alive().await;
}

#[tokio::test]
async fn idle_timeout_fails_no_call() {
    let cluster = Cluster::start(3).await;
    let proxy = L7Proxy::start(&cluster).await;
    // The stream of health changes would keep the connection busy.
    proxy.on_request(|request| match request.path.as_str() {
        "/grpc.health.v1.Health/Watch" => L7Action::fail(Failure::status(12, "not routed")),
        _ => L7Action::forward(),
    });
    proxy.set_idle_timeout(Duration::from_millis(100));
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    for n in 0..10u64 {
        // Around the timeout, so that calls meet connections that are being shut down.
        hold(Duration::from_millis(90 + 4 * n)).await;
        etcd.put("k", n.to_string()).await.unwrap();
        etcd.get("k").await.unwrap();
    }
    assert!(proxy.link().accepted() > 1, "no connection was idle");
}

#[tokio::test]
async fn silent_streams_are_reopened_without_loss() {
    let (cluster, proxy, etcd) = start().await;
    // As nginx does with its default `grpc_read_timeout`, only sooner.
    proxy.on_request(|request| match request.path.as_str() {
        "/etcdserverpb.Watch/Watch" | "/etcdserverpb.Lease/LeaseKeepAlive" => {
            L7Action::forward().read_timeout(Duration::from_millis(400))
        }
        _ => L7Action::forward(),
    });
    let watched = WatchedRevisions::start(&etcd, PREFIX).await;
    let lease = etcd.lease(3 * SECOND).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    for n in 0..8 {
        hold(Duration::from_millis(700)).await;
        etcd.put(format!("{PREFIX}{n}"), "v").await.unwrap();
    }
    assert!(proxy.count("/etcdserverpb.Watch/Watch") > 3);
    watched.check(&cluster).await;
    recorder.check_alive().await;
}

#[tokio::test]
async fn rewritten_headers_fail_no_call() {
    let (cluster, proxy, etcd) = start().await;
    proxy.on_request(|_| {
        L7Action::forward()
            .with_request_header("user-agent", "proxy/1")
            .with_request_header("x-forwarded-for", "10.0.0.1")
            .without_request_header("client-api-version")
            .with_response_header("x-request-id", "0f8e")
            .with_response_header("server", "proxy")
    });
    check_no_failure(&cluster, &etcd, async |writers| {
        writers.wait_for_writes(100).await;
    })
    .await;
}

#[tokio::test]
async fn removed_tokens_end_with_authentication_error() {
    let cluster = start_with_auth(Cluster::builder()).await;
    let proxy = L7Proxy::start(&cluster).await;
    let builder = Client::builder([proxy.endpoint()]).credentials("root", "secret");
    let etcd = builder.connect().await.unwrap();
    etcd.put("k", "v").await.unwrap();
    let logins = login_count(&cluster).await;
    proxy.on_request(|_| L7Action::forward().without_request_header("token"));
    let refused = etcd.put("k", "v").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::UserEmpty);
    assert!(login_count(&cluster).await <= logins + 6);
    proxy.clear_script();
    etcd.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn failing_probes_do_not_close_connection() {
    let (cluster, proxy, etcd) = start().await;
    proxy.on_request(|request| {
        if request.path == STATUS {
            L7Action::fail(Failure::http(503))
        } else {
            L7Action::forward()
        }
    });
    check_no_failure(&cluster, &etcd, async |writers| {
        writers.wait_for_writes(100).await;
        hold(3 * SECOND).await;
    })
    .await;
}
