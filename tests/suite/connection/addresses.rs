//! Host names with several addresses.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use actix_etcd::{Client, ClientBuilder, ErrorKind, balancer::ConnectivityState::Ready};
use testbed::{Cluster, Fault, Greeting, Member, ScriptedServer};

use crate::support::{
    host_name::{HostName, address},
    skipped_check::report_skipped,
    wait::{TEST_TIMEOUT, until},
};

const ENDPOINT: &str = "http://etcd.test:2379";
/// Long enough that no test passes because a second dial found another address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

fn client(host: &HostName) -> ClientBuilder {
    host.resolved_by(Client::builder([ENDPOINT]))
        .connect_timeout(CONNECT_TIMEOUT)
        .request_timeout(CONNECT_TIMEOUT * 3)
}

/// Resets the connections of a member, and waits until the client is ready again.
async fn reconnect(etcd: &Client, member: &Member) {
    let connected_since = etcd.connectivity()[0].since;
    member.client_link().reset_now();
    until("the client has reconnected", || {
        let endpoint = &etcd.connectivity()[0];
        endpoint.state == Ready && endpoint.since > connected_since
    })
    .await;
}

#[tokio::test]
async fn silent_address_does_not_hide_the_next() {
    let cluster = Cluster::start(3).await;
    let [silent, good] = [cluster.member(0), cluster.member(1)];
    silent.client_link().set(Fault::Freeze);
    let host = HostName::new([address(&silent), address(&good)]);
    let started = Instant::now();
    let etcd = client(&host).connect().await.unwrap();
    assert!(
        started.elapsed() < CONNECT_TIMEOUT / 2,
        "{:?}",
        started.elapsed()
    );
    assert_eq!(host.lookups(), 1, "one dial tries all addresses");
    assert_eq!(silent.client_link().accepted(), 1);
    etcd.put("k", "v").await.unwrap();
    assert_eq!(
        etcd.connectivity()[0].member_id,
        Some(good.id()),
        "the good address is in use"
    );
    // A frozen proxy does not close its connections.
    silent.client_link().heal();
    until("the losing connection is closed", || {
        silent.client_link().connections() == 0
    })
    .await;
}

#[tokio::test]
async fn failed_address_is_tried_last() {
    const RECONNECTS: u64 = 5;
    let cluster = Cluster::start(3).await;
    let [silent, good] = [cluster.member(0), cluster.member(1)];
    silent.client_link().set(Fault::Freeze);
    let host = HostName::new([address(&silent), address(&good)]);
    let etcd = client(&host).connect().await.unwrap();
    let before = silent.client_link().accepted();
    for _ in 0..RECONNECTS {
        reconnect(&etcd, &good).await;
    }
    // A slow response of the good address may have started an attempt at the other one.
    let dialled = silent.client_link().accepted() - before;
    assert!(
        dialled <= RECONNECTS / 2,
        "{dialled} of {RECONNECTS} dials tried the silent address"
    );
    assert!(
        host.lookups() as u64 > RECONNECTS,
        "every dial looks the name up"
    );
}

#[tokio::test]
async fn changed_addresses_are_used_at_next_dial() {
    let cluster = Cluster::start(3).await;
    let [old, new] = [cluster.member(0), cluster.member(1)];
    let host = HostName::new([address(&old)]);
    let etcd = client(&host).connect().await.unwrap();
    assert_eq!(etcd.connectivity()[0].member_id, Some(old.id()));
    host.set([address(&new)]);
    reconnect(&etcd, &old).await;
    assert_eq!(etcd.connectivity()[0].member_id, Some(new.id()));
    etcd.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn name_that_resolves_later_is_connected() {
    let cluster = Cluster::start(1).await;
    let host = HostName::default();
    let etcd = client(&host).connect_lazy().await.unwrap();
    let last_error = || etcd.connectivity()[0].last_error.clone();
    until("the lookup fails", || last_error().is_some()).await;
    let error = last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.to_string().contains("the name does not exist"),
        "{error}"
    );
    host.set([address(&cluster.member(0))]);
    etcd.wait_ready(TEST_TIMEOUT).await.unwrap();
    etcd.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn silent_ipv6_address_does_not_hide_ipv4() {
    // Connections wait in the backlog of this listener, so the address accepts TCP but stays silent.
    let Ok(silent) = TcpListener::bind("[::1]:0") else {
        return report_skipped("IPv6 addresses: this machine has no IPv6 loopback");
    };
    let refusing = TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap();
    let cluster = Cluster::start(1).await;
    let good = address(&cluster.member(0));
    let host = HostName::new([silent.local_addr().unwrap(), refusing, refusing, good]);
    let started = Instant::now();
    let etcd = client(&host).connect().await.unwrap();
    assert!(started.elapsed() < CONNECT_TIMEOUT / 2);
    etcd.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn repeated_address_is_dialled_once() {
    let cluster = Cluster::start(3).await;
    let [silent, good] = [cluster.member(0), cluster.member(1)];
    silent.client_link().set(Fault::Freeze);
    let listed_twice = [address(&silent), address(&silent), address(&good)];
    let host = HostName::new(listed_twice);
    let etcd = client(&host).connect().await.unwrap();
    assert_eq!(silent.client_link().accepted(), 1);
    etcd.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn error_lists_every_address() {
    let (silent, closing) = (ScriptedServer::start().await, ScriptedServer::start().await);
    silent.set_greeting(Greeting::Silence);
    closing.set_greeting(Greeting::Close);
    let host = HostName::new([silent.address(), closing.address()]);
    let builder = host.resolved_by(Client::builder([ENDPOINT]));
    let etcd = builder
        .connect_timeout(Duration::from_millis(500))
        .connect_lazy()
        .await
        .unwrap();
    let last_error = || etcd.connectivity()[0].last_error.clone();
    until("a dial fails", || last_error().is_some()).await;
    let error = last_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    let silence = format!("{}: no response within 500ms", silent.address());
    assert!(text.contains(&silence), "{text}");
    assert!(text.contains(&format!("{}: ", closing.address())), "{text}");
}
