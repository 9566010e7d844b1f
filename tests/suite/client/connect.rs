//! Where a client can be used from, and what it can reach.

use std::time::Duration;

use actix_etcd::{Client, ConnectivityState};
use testbed::{Cluster, Fault};

use crate::support::{skipped_check::report_skipped, wait::until};

/// One use of a client, the same from everywhere.
async fn use_it(endpoints: Vec<String>, on_arbiter: bool) {
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
fn it_works_from_every_kind_of_runtime() {
    let helper = tokio::runtime::Runtime::new().unwrap();
    let cluster = helper.block_on(Cluster::start(1));
    let endpoints = cluster.endpoints();

    let current = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    current.block_on(use_it(endpoints.clone(), false));
    let multi = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    multi.block_on(use_it(endpoints.clone(), false));
    actix_rt::System::new().block_on(use_it(endpoints.clone(), false));
    actix_rt::System::new().block_on(use_it(endpoints, true));
}

#[test]
fn one_client_serves_several_threads_and_runtimes_at_once() {
    let helper = tokio::runtime::Runtime::new().unwrap();
    let cluster = helper.block_on(Cluster::start(1));
    let etcd = helper
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
    let count =
        helper.block_on(async { etcd.get("t/").prefix().count_only().await.unwrap().count });
    assert_eq!(count, 200);
}

#[tokio::test]
async fn unix_sockets_and_bare_addresses_are_reached() {
    let socket = std::env::temp_dir().join(format!("actix-etcd-{}.sock", std::process::id()));
    let cluster = Cluster::start(1).await;
    let target = cluster.direct_endpoints()[0].replace("http://", "");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let bridged = target.clone();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = tokio::net::TcpStream::connect(&bridged).await.unwrap();
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut client, &mut server).await },
            );
        }
    });
    use_it(vec![format!("unix://{}", socket.display())], false).await;
    use_it(vec![target.replace("127.0.0.1", "localhost")], false).await;
    std::fs::remove_file(&socket).unwrap();
}

#[tokio::test]
async fn ipv6_is_reached() {
    let Ok(listener) = tokio::net::TcpListener::bind("[::1]:0").await else {
        return report_skipped("IPv6: this machine has no loopback for it");
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
    use_it(vec![format!("http://{address}")], false).await;
}

#[tokio::test]
async fn a_call_started_while_all_members_are_down_succeeds_when_they_return() {
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
    until("the client knows that all are down", none_ready).await;
    let waiting = tokio::spawn(etcd.get("k").timeout(Duration::from_secs(30)).into_future());
    cluster.start_all().await;
    assert_eq!(waiting.await.unwrap().unwrap().first().unwrap().value, "v");
}

#[tokio::test]
async fn a_lazy_client_waits_for_its_first_member() {
    let cluster = Cluster::start(1).await;
    cluster.member(0).client_link().set(Fault::Refuse);
    let etcd = Client::builder(cluster.endpoints())
        .connect_lazy()
        .await
        .unwrap();
    let short = etcd
        .wait_ready(Duration::from_millis(100))
        .await
        .unwrap_err();
    assert!(
        short.to_string().contains(&cluster.endpoints()[0]),
        "{short}"
    );
    let waiting = tokio::spawn(etcd.get("k").timeout(Duration::from_secs(20)).into_future());
    cluster.member(0).client_link().heal();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_never_answers_does_not_count_as_ready() {
    let cluster = Cluster::start(1).await;
    cluster.member(0).freeze();
    let etcd = Client::builder(cluster.direct_endpoints())
        .connect_timeout(Duration::from_millis(300))
        .connect_lazy()
        .await
        .unwrap();
    let error = etcd.wait_ready(Duration::from_secs(1)).await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
    cluster.member(0).thaw();
    etcd.wait_ready(Duration::from_secs(20)).await.unwrap();
}
