//! An actor runs on exactly one of three nodes, and moves to another node when its node is cut off or stopped.
//!
//! `cargo run --example leader_singleton` starts three etcd members. In production, the three nodes are processes on
//! different machines; here they are clients in one process.

use std::{error::Error, time::Duration};

use actix::{Actor, AsyncContext, Context, fut::wrap_future};
use actix_etcd::{
    Client, WatchEvent,
    kv::put,
    recipes::{election::Ownership, singleton::Singleton},
};
use testbed::{Cluster, Fault, TcpProxy};

/// The actor that must run only once.
struct Scheduler {
    node: &'static str,
    leadership: Ownership,
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let (node, token) = (self.node, self.leadership.token());
        println!("  scheduler started on node {node}, fencing token {token}");
        ctx.run_interval(Duration::from_millis(200), |scheduler, ctx| {
            let node = scheduler.node;
            // etcd applies this write only while the node is the leader, even if its clock is wrong.
            let write = scheduler.leadership.txn().then(put("plan", node));
            ctx.spawn(wrap_future(async move {
                match write.await {
                    Ok(txn) if txn.succeeded => {}
                    Ok(_) => println!("  node {node} is not the leader any more"),
                    Err(error) => println!("  node {node} could not write: {error}"),
                }
            }));
        });
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        println!("  scheduler stopped on node {}", self.node);
    }
}

fn start_node(etcd: &Client, node: &'static str) -> actix_etcd::Result<Singleton<Scheduler>> {
    etcd.singleton("scheduler")
        .value(node)
        .ttl(Duration::from_secs(2))
        .start(move |leadership| Scheduler { node, leadership })
}

/// Waits until this node has written the plan.
async fn wait_for_plan_of(etcd: &Client, node: &str) -> actix_etcd::Result<()> {
    let mut watch = etcd.watch("plan").start_revision(1).await?;
    while let Some(event) = watch.next().await {
        if let WatchEvent::Events(events) = event
            && events.iter().any(|event| event.value() == node.as_bytes())
        {
            println!("  node {node} has written the plan");
            break;
        }
    }
    Ok(())
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("▸ starting three etcd members on this machine");
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await?;

    println!("▸ starting node a, behind a proxy that can cut it off");
    let endpoint = &cluster.direct_endpoints()[0];
    let (_, port) = endpoint.rsplit_once(':').ok_or("endpoint without port")?;
    let proxy = TcpProxy::to_port(port.parse()?);
    let client_a = Client::connect([format!("http://{}", proxy.address())]).await?;
    let a = start_node(&client_a, "a")?;
    a.running().await?;
    println!("▸ starting nodes b and c");
    let b = start_node(&etcd, "b")?;
    let c = start_node(&etcd, "c")?;
    wait_for_plan_of(&etcd, "a").await?;

    println!("▸ cutting off node a: its scheduler stops before another node may start one");
    proxy.link().set(Fault::Freeze);
    tokio::select! {
        running = b.running() => drop(running?),
        running = c.running() => drop(running?),
    }
    assert!(a.addr().is_none());
    let leader = etcd.leader("scheduler").await?.ok_or("no leader")?;
    let leader = String::from_utf8_lossy(&leader.value);
    println!("▸ every client can read the leader: node {leader}");

    println!("▸ reconnecting node a and stopping nodes b and c: node a takes over");
    proxy.link().heal();
    b.stop().await;
    c.stop().await;
    a.running().await?;
    a.stop().await;
    client_a.shutdown().await;
    etcd.shutdown().await;
    Ok(())
}
