//! Services register themselves, and an actor holds the list of live instances.
//!
//! `cargo run --example service_discovery` starts three members, kills one, and cuts off an instance. Keys and values
//! have the format of Go's `naming/endpoints`: gRPC clients in Go find the same instances.

use std::{error::Error, time::Duration};

use actix::{Actor, Addr, AsyncContext, Context, Handler};
use actix_etcd::{
    Client, Etcd,
    recipes::discovery::{DiscoveryEvent, discover, register},
};
use testbed::{Cluster, Fault, TcpProxy};
use tokio::sync::watch;

const SERVICE: &str = "services/web";

/// Holds the addresses of all live instances of the service.
struct Directory {
    etcd: Addr<Etcd>,
    addresses: watch::Sender<Vec<String>>,
}

impl Actor for Directory {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // Sent with `do_send`, the subscription lives as long as this actor.
        let subscription = discover(SERVICE).deliver_to(ctx.address().recipient());
        self.etcd.do_send(subscription);
    }
}

impl Handler<DiscoveryEvent> for Directory {
    type Result = ();

    fn handle(&mut self, event: DiscoveryEvent, _: &mut Context<Self>) {
        match event {
            DiscoveryEvent::Changed(change) => {
                for instance in &change.joined {
                    println!("  joined:  {} {}", instance.addr, instance.metadata);
                }
                for instance in &change.changed {
                    println!("  changed: {} {}", instance.addr, instance.metadata);
                }
                for instance in &change.left {
                    println!("  left:    {}", instance.addr);
                }
                let instances = change.instances.iter();
                let addresses = instances.map(|instance| instance.addr.clone()).collect();
                self.addresses.send_replace(addresses);
            }
            DiscoveryEvent::Ended(error) => println!("  discovery ended: {error}"),
            _ => {}
        }
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("▸ starting three etcd members on this machine");
    let cluster = Cluster::start(3).await;
    let client = Client::connect(cluster.endpoints()).await?;
    let etcd = Etcd::new(client.clone()).start();
    let (addresses, mut list) = watch::channel(Vec::new());
    let directory = Directory {
        etcd: etcd.clone(),
        addresses,
    };
    let _directory = directory.start();

    println!("▸ two instances register: one with a message, one with the client");
    let first = register(SERVICE, "10.0.0.1:80").metadata("zone a");
    let first = etcd.send(first).await??;
    let second = client.register(SERVICE, "10.0.0.2:80").metadata("zone b");
    let second = second.await?;
    list.wait_for(|list| list.len() == 2).await?;

    println!("▸ a third instance registers, behind a proxy that can cut it off");
    let endpoint = &cluster.direct_endpoints()[1];
    let (_, port) = endpoint.rsplit_once(':').ok_or("endpoint without port")?;
    let proxy = TcpProxy::to_port(port.parse()?);
    let third_client = Client::connect([format!("http://{}", proxy.address())]).await?;
    let third = third_client
        .register(SERVICE, "10.0.0.3:80")
        .metadata("zone c")
        .ttl(Duration::from_secs(2))
        .await?;
    list.wait_for(|list| list.len() == 3).await?;

    println!("▸ killing an etcd member: all instances stay registered");
    cluster.member(0).kill();
    // A write in flight when the member dies may fail. This one is safe to repeat.
    while let Err(error) = first.update("10.0.0.1:80", "zone d").await {
        println!("  {error}");
    }
    list.changed().await?;
    assert_eq!(list.borrow().len(), 3);

    println!("▸ cutting off the third instance: it leaves after its TTL of two seconds");
    proxy.link().set(Fault::Freeze);
    list.wait_for(|list| list.len() == 2).await?;
    println!("▸ reconnecting the third instance: it registers again");
    proxy.link().heal();
    list.wait_for(|list| list.len() == 3).await?;

    println!("▸ all instances unregister");
    first.unregister().await?;
    second.unregister().await?;
    third.unregister().await?;
    list.wait_for(Vec::is_empty).await?;
    client.shutdown().await;
    Ok(())
}
