//! Runtimes a client works on, addresses it connects to, and members that are down at first.

use std::time::Duration;

use actix_etcd::{Client, balancer::ConnectivityState};
use testbed::{Cluster, Fault};

use crate::support::{skipped_check::report_skipped, wait::until};

/// Connects, puts and gets a key, and shuts down.
async fn put_and_get(endpoints: Vec<String>, on_arbiter: bool) {
    let mut builder = Client::builder(endpoints);
    if on_arbiter {
        builder = builder.on_current_arbiter();
    }
    let etcd = builder.connect().await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(etcd.get("k").await.unwrap().first().unwrap().value, "v");
    etcd.shutdown().await;
}

#[test]
fn client_works_on_every_runtime() {
    let cluster_runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = cluster_runtime.block_on(Cluster::start(1));
    let endpoints = cluster.endpoints();

    let current_thread = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    current_thread.block_on(put_and_get(endpoints.clone(), false));
    let multi_thread = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    multi_thread.block_on(put_and_get(endpoints.clone(), false));
    actix_rt::System::new().block_on(put_and_get(endpoints.clone(), false));
    actix_rt::System::new().block_on(put_and_get(endpoints, true));
}

#[test]
fn client_is_shared_across_runtimes() {
    let cluster_runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = cluster_runtime.block_on(Cluster::start(1));
    let etcd = cluster_runtime
        .block_on(Client::connect(cluster.endpoints()))
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let etcd = etcd.clone();
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    for n in 0..50 {
                        etcd.put(format!("t/{thread}/{n}"), "x").await.unwrap();
                    }
                });
            });
        }
    });
    let count = cluster_runtime
        .block_on(async { etcd.get("t/").prefix().count_only().await.unwrap().count });
    assert_eq!(count, 200);
}

#[tokio::test]
async fn unix_sockets_and_bare_addresses_connect() {
    let socket = std::env::temp_dir().join(format!("actix-etcd-{}.sock", std::process::id()));
    let cluster = Cluster::start(1).await;
    let target = cluster.direct_endpoints()[0].replace("http://", "");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let upstream = target.clone();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = tokio::net::TcpStream::connect(&upstream).await.unwrap();
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut client, &mut server).await },
            );
        }
    });
    put_and_get(vec![format!("unix://{}", socket.display())], false).await;
    put_and_get(vec![target.replace("127.0.0.1", "localhost")], false).await;
    std::fs::remove_file(&socket).unwrap();
}

#[tokio::test]
async fn ipv6_address_connects() {
    let Ok(listener) = tokio::net::TcpListener::bind("[::1]:0").await else {
        return report_skipped("IPv6: this machine has no IPv6 loopback address");
    };
    let cluster = Cluster::start(1).await;
    let target = cluster.direct_endpoints()[0].replace("http://", "");
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = tokio::net::TcpStream::connect(&target).await.unwrap();
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut client, &mut server).await },
            );
        }
    });
    put_and_get(vec![format!("http://{address}")], false).await;
}

#[tokio::test]
async fn call_waits_for_members_to_return() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    etcd.put("k", "v").await.unwrap();
    for member in cluster.members() {
        member.kill();
    }
    let none_ready = || {
        etcd.connectivity()
            .iter()
            .all(|member| member.state != ConnectivityState::Ready)
    };
    until("all members are down for the client", none_ready).await;
    let read = tokio::spawn(etcd.get("k").timeout(Duration::from_secs(30)).into_future());
    cluster.start_all().await;
    assert_eq!(read.await.unwrap().unwrap().first().unwrap().value, "v");
}

#[tokio::test]
async fn lazy_client_waits_for_first_member() {
    let cluster = Cluster::start(1).await;
    cluster.member(0).client_link().set(Fault::Refuse);
    let etcd = Client::builder(cluster.endpoints())
        .connect_lazy()
        .await
        .unwrap();
    let error = etcd
        .wait_ready(Duration::from_millis(100))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains(&cluster.endpoints()[0]),
        "{error}"
    );
    let read = tokio::spawn(etcd.get("k").timeout(Duration::from_secs(20)).into_future());
    cluster.member(0).client_link().heal();
    read.await.unwrap().unwrap();
}

#[tokio::test]
async fn unresponsive_server_is_not_ready() {
    let cluster = Cluster::start(1).await;
    cluster.member(0).freeze();
    let etcd = Client::builder(cluster.direct_endpoints())
        .connect_timeout(Duration::from_millis(300))
        .connect_lazy()
        .await
        .unwrap();
    let error = etcd.wait_ready(Duration::from_secs(1)).await.unwrap_err();
    assert!(error.to_string().contains("no response within"), "{error}");
    cluster.member(0).thaw();
    etcd.wait_ready(Duration::from_secs(20)).await.unwrap();
}
