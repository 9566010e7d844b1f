//! Idle watches leave members that are frozen or cut off, although no call notices the fault.

use std::time::{Duration, Instant};

use actix_etcd::{Client, Watch};
use testbed::{Cluster, Fault, Reply, ResponseHeader, STATUS, ScriptedServer, StatusResponse};

use crate::support::{
    connected_cluster::connect,
    quiet_window::ready_members,
    wait::{hold, until},
    watch_items::next_change,
    watch_server::{created, next_create, start_watch_server},
    watcher_metrics::{wait_for_watchers, watched_member},
    write_load::put_until_ok,
};

/// An idle stream leaves a faulty member within 1.5 s. The rest is for a busy machine; without regular checks it takes
/// three seconds and more.
const LIMIT: Duration = Duration::from_millis(2500);

/// Returns a client that reaches only one member, without the proxies.
async fn direct_client(cluster: &Cluster, member: usize) -> Client {
    let endpoint = cluster.member(member).direct_endpoint();
    connect([endpoint]).await
}

/// Opens a watch on a member that is not the leader. Returns the watch and the index of the member.
async fn watch_on_follower(cluster: &Cluster, etcd: &Client) -> (Watch, usize) {
    loop {
        let watch = etcd.watch("k").await.unwrap();
        let member = watched_member(cluster).await;
        if member != cluster.leader().await {
            return (watch, member);
        }
        // The next watch starts at the next member.
        drop(watch);
        wait_for_watchers(cluster, 0.0).await;
    }
}

/// Injects a fault into the member of the only watch of an idle client, while another client writes. Returns the time
/// from the first write after the fault until its event arrives.
async fn lateness_after(fault: impl FnOnce(&Cluster, usize)) -> Duration {
    // A member that is cut off trusts its last leader for at least ten seconds.
    let builder = Cluster::builder().members(3).election(100, 10_000);
    let cluster = builder.start().await;
    let idle = connect(cluster.endpoints()).await;
    let (mut watch, member) = watch_on_follower(&cluster, &idle).await;
    let writer = direct_client(&cluster, (member + 1) % 3).await;
    let before = writer.put("k", "before").await.unwrap().header.revision;
    assert_eq!(next_change(&mut watch).await.0, before);
    fault(&cluster, member);
    let written = put_until_ok(&writer, "k", "v").await;
    let start = Instant::now();
    while next_change(&mut watch).await.0 < written {}
    let lateness = start.elapsed();
    println!("delivered {lateness:?} after the write");
    cluster.heal();
    idle.shutdown().await;
    writer.shutdown().await;
    lateness
}

#[tokio::test]
async fn idle_watch_leaves_frozen_link() {
    let lateness = lateness_after(|cluster, member| {
        cluster.member(member).client_link().set(Fault::Freeze);
    });
    assert!(lateness.await < LIMIT);
}

#[tokio::test]
async fn idle_watch_leaves_frozen_member() {
    let lateness = lateness_after(|cluster, member| cluster.member(member).freeze());
    assert!(lateness.await < LIMIT);
}

#[tokio::test]
async fn idle_watch_leaves_isolated_member() {
    let lateness = lateness_after(Cluster::isolate);
    assert!(lateness.await < LIMIT);
}

/// Starts a member that creates watches, with this id.
async fn start_member(id: u64) -> ScriptedServer {
    let (server, _) = start_watch_server(|_, mut tx, mut rx, _| async move {
        loop {
            let id = next_create(&mut rx).await.watch_id;
            tx.send(&created(id, 5)).await.unwrap();
        }
    })
    .await;
    let status = StatusResponse {
        header: Some(ResponseHeader {
            cluster_id: 1,
            member_id: id,
            ..ResponseHeader::default()
        }),
        ..StatusResponse::healthy()
    };
    server.on(STATUS, move |_| Reply::message(&status));
    server
}

#[tokio::test]
async fn idle_stream_checks_keep_the_probe_budget() {
    let servers = [
        start_member(1).await,
        start_member(2).await,
        start_member(3).await,
    ];
    let endpoints = servers.iter().map(ScriptedServer::endpoint);
    let etcd = connect(endpoints).await;
    until("all members are ready", || ready_members(&etcd) == 3).await;
    let counts = || servers.each_ref().map(|server| server.count(STATUS));
    let contacts = counts();
    hold(Duration::from_secs(2)).await;
    assert_eq!(
        counts(),
        contacts,
        "a client without streams sends no probe"
    );
    let _watch = etcd.watch("a").await.unwrap();
    let start = Instant::now();
    hold(Duration::from_secs(6)).await;
    // Every 680 ms, with a deviation of 5 %.
    let most = start.elapsed().as_millis() / 646 + 1;
    for (before, after) in contacts.into_iter().zip(counts()) {
        let probes = after - before;
        assert!(probes >= 5, "{probes} probes of a member");
        assert!(probes as u128 <= most, "{probes} probes of a member");
    }
    etcd.shutdown().await;
}
