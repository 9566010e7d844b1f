//! Failures that an L7 proxy reports or causes: no read fails, and every failed write has a truthful outcome.

use std::time::Duration;

use actix_etcd::{Client, Outcome};
use testbed::{Cluster, ErrorStyle, Failure, L7Action, L7Proxy, ProxiedRequest, Reason};

use crate::support::{
    lease_recorder::LeaseRecorder,
    traffic::{Readers, Write, Writers, check_applied_at_most_once, error_counts},
    watched_revisions::WatchedRevisions,
};

const PREFIX: &str = "w/";
const KV: [&str; 2] = ["/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"];

/// Runs a load through the proxy while every fifth read and write gets this action, with a watch and a lease. Returns
/// the writes.
async fn run_with_script(
    style: ErrorStyle,
    action: impl Fn() -> L7Action + Send + Sync + 'static,
) -> Vec<Write> {
    let is_fifth =
        |request: &ProxiedRequest| KV.contains(&request.path.as_str()) && request.nth % 5 == 4;
    let cluster = Cluster::start(3).await;
    let proxy = L7Proxy::start(&cluster).await;
    proxy.set_error_style(style);
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    etcd.put("read", "me").await.unwrap();
    let watched = WatchedRevisions::start(&etcd, PREFIX).await;
    let lease = etcd
        .lease(Duration::from_secs(5))
        .keep_alive()
        .await
        .unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    proxy.on_request(move |request| {
        if is_fifth(request) {
            action()
        } else {
            L7Action::forward()
        }
    });
    let writers = Writers::start(&etcd, 3, PREFIX);
    let readers = Readers::start(&etcd, 2, "read");
    writers.wait_for_writes(60).await;
    let writes = writers.finish().await;
    let failed_reads = readers.finish().await;
    println!(
        "{} writes, {:?}, {} connections",
        writes.len(),
        error_counts(&writes),
        proxy.link().accepted()
    );
    assert!(failed_reads.is_empty(), "{failed_reads:?}");
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
    watched.check(&cluster).await;
    recorder.check_alive().await;
    writes
}

fn assert_no_failure(writes: &[Write]) {
    for write in writes {
        assert!(write.result.is_ok(), "{write:?}");
    }
}

fn assert_some_unknown(writes: &[Write]) {
    let errors = writes
        .iter()
        .filter_map(|write| write.result.as_ref().err());
    let unknown = errors.filter(|error| error.outcome() == Outcome::Unknown);
    assert!(unknown.count() > 0, "no lost response was reported");
}

#[tokio::test]
async fn refused_streams_fail_no_call() {
    let writes = run_with_script(ErrorStyle::Envoy, || {
        L7Action::fail(Failure::reset(Reason::REFUSED_STREAM))
    })
    .await;
    assert_no_failure(&writes);
}

#[tokio::test]
async fn html_503_fails_no_read() {
    run_with_script(ErrorStyle::Nginx, || L7Action::fail(Failure::http(503))).await;
}

#[tokio::test]
async fn html_503_after_applied_write_is_unknown() {
    let writes = run_with_script(ErrorStyle::Nginx, || {
        L7Action::forward().then_fail(Failure::http(503))
    })
    .await;
    assert_some_unknown(&writes);
}

#[tokio::test]
async fn missing_upstream_fails_no_read() {
    run_with_script(ErrorStyle::Envoy, || {
        L7Action::fail(Failure::no_healthy_upstream())
    })
    .await;
}

#[tokio::test]
async fn upstream_reset_after_applied_write_is_unknown() {
    let writes = run_with_script(ErrorStyle::Envoy, || {
        L7Action::forward().then_fail(Failure::status(
            14,
            "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
        ))
    })
    .await;
    assert_some_unknown(&writes);
}

#[tokio::test]
async fn reset_stream_after_applied_write_is_unknown() {
    let writes = run_with_script(ErrorStyle::Envoy, || {
        L7Action::forward().then_fail(Failure::reset(Reason::INTERNAL_ERROR))
    })
    .await;
    assert_some_unknown(&writes);
}

#[tokio::test]
async fn request_timeout_after_applied_write_is_unknown() {
    for style in [ErrorStyle::Envoy, ErrorStyle::Nginx] {
        let failure = match style {
            ErrorStyle::Nginx => Failure::http(504),
            _ => Failure::status(14, "upstream request timeout"),
        };
        let writes = run_with_script(style, move || {
            L7Action::forward().then_fail(failure.clone())
        })
        .await;
        assert_some_unknown(&writes);
    }
}

#[tokio::test]
async fn killed_member_behind_l7_proxy_costs_no_read() {
    let cluster = Cluster::start(3).await;
    let proxy = L7Proxy::start(&cluster).await;
    let etcd = Client::connect([proxy.endpoint()]).await.unwrap();
    etcd.put("read", "me").await.unwrap();
    let watched = WatchedRevisions::start(&etcd, PREFIX).await;
    let writers = Writers::start(&etcd, 3, PREFIX);
    let readers = Readers::start(&etcd, 2, "read");
    for member in cluster.members() {
        writers.wait_for_writes(20).await;
        member.kill();
        writers.wait_for_writes(20).await;
        member.start().await;
        cluster.wait_healthy().await;
    }
    let writes = writers.finish().await;
    println!("{:?}", error_counts(&writes));
    let failed_reads = readers.finish().await;
    assert!(failed_reads.is_empty(), "{failed_reads:?}");
    check_applied_at_most_once(&cluster, PREFIX, &writes).await;
    watched.check(&cluster).await;
}
