//! An actor of yours runs on exactly one of three nodes, and moves when its node is cut off or stopped.
//!
//! `cargo run --example leader_singleton` starts an etcd cluster of three. The three nodes would be three processes of
//! yours on three machines; here they are three clients in one.

use std::{error::Error, time::Duration};

use actix::{Actor, AsyncContext, Context};
use actix_etcd::{
    Client,
    kv::put,
    recipes::{election::Ownership, singleton::Singleton},
};
use testbed::{Cluster, Fault, TcpProxy};

/// The one that plans the work of all.
struct Scheduler {
    node: &'static str,
    leadership: Ownership,
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        println!(
            "  scheduler starts on node {} with token {}",
            self.node,
            self.leadership.token()
        );
        ctx.run_interval(Duration::from_millis(200), |scheduler, ctx| {
            // Written only while this node leads, whatever the clocks say.
            let plan = put("plan", scheduler.node);
            let write = scheduler.leadership.txn().then([plan]).into_future();
            let node = scheduler.node;
            ctx.spawn(actix::fut::wrap_future(async move {
                match write.await {
                    Ok(done) if done.succeeded => {}
                    Ok(_) => println!("  node {node} may not write any more"),
                    Err(error) => println!("  node {node} could not write: {error}"),
                }
            }));
        });
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        println!("  scheduler has ended on node {}", self.node);
    }
}

fn start_node(etcd: &Client, node: &'static str) -> actix_etcd::Result<Singleton<Scheduler>> {
    etcd.singleton("scheduler")
        .value(node)
        .ttl(Duration::from_secs(2))
        .start(move |leadership| Scheduler { node, leadership })
}

/// Waits until the plan is this node's.
async fn planned_by(etcd: &Client, node: &str) -> actix_etcd::Result<()> {
    let mut plan = etcd.watch("plan").start_revision(1).await?;
    while let Some(item) = plan.next().await {
        if let actix_etcd::WatchEvent::Events(events) = item
            && events.iter().any(|event| event.value() == node.as_bytes())
        {
            println!("  node {node} plans");
            return Ok(());
        }
    }
    unreachable!("a watch goes on until it is dropped")
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("▸ starting three etcd members on this machine");
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await?;

    println!("▸ node a begins; its way to etcd can be cut");
    let port = cluster.direct_endpoints()[0]
        .rsplit(':')
        .next()
        .map(str::parse);
    let way = TcpProxy::to_port(port.ok_or("an endpoint has a port")??);
    let cut_off = Client::connect([format!("http://{}", way.address())]).await?;
    let a = start_node(&cut_off, "a")?;
    a.running().await?;
    println!("▸ nodes b and c join");
    let b = start_node(&etcd, "b")?;
    let c = start_node(&etcd, "c")?;
    planned_by(&etcd, "a").await?;

    println!("▸ cutting node a off: it stops its scheduler before another node can have it");
    way.link().set(Fault::Freeze);
    tokio::select! {
        running = b.running() => drop(running?),
        running = c.running() => drop(running?),
    }
    assert!(a.addr().is_none());
    let leader = etcd.leader("scheduler").await?.ok_or("somebody leads")?;
    println!("▸ everybody can see who leads: {:?}", leader.value);

    println!("▸ stopping nodes b and c: node a is back, and takes over");
    way.link().heal();
    b.stop().await;
    c.stop().await;
    a.running().await?;
    a.stop().await;
    cut_off.shutdown().await;
    etcd.shutdown().await;
    Ok(())
}
