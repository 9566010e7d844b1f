//! Services register themselves, and an actor of yours holds the list of those that are there.
//!
//! `cargo run --example service_discovery` starts three members, kills one, and lets an instance die. Keys and values
//! are those of Go's `naming/endpoints`: gRPC clients in Go find the same instances.

use std::{error::Error, time::Duration};

use actix::{Actor, AsyncContext, Context, Handler};
use actix_etcd::{
    Client, Etcd,
    recipes::discovery::{DiscoveryEvent, discover, register},
};
use testbed::{Cluster, Fault, TcpProxy};
use tokio::sync::watch;

/// Knows where the service can be reached.
struct Directory {
    etcd: actix::Addr<Etcd>,
    addresses: watch::Sender<Vec<String>>,
}

impl Actor for Directory {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // With `do_send` it is told for as long as it lives.
        let me = ctx.address().recipient();
        self.etcd.do_send(discover("services/web").deliver_to(me));
    }
}

impl Handler<DiscoveryEvent> for Directory {
    type Result = ();

    fn handle(&mut self, event: DiscoveryEvent, _: &mut Context<Self>) {
        match event {
            DiscoveryEvent::Changed(change) => {
                for instance in &change.joined {
                    println!("  + {} {}", instance.addr, instance.metadata);
                }
                for instance in &change.changed {
                    println!("  * {} {}", instance.addr, instance.metadata);
                }
                for instance in &change.left {
                    println!("  - {}", instance.addr);
                }
                let now = change.instances.iter();
                let now = now.map(|instance| instance.addr.clone()).collect();
                self.addresses.send_replace(now);
            }
            DiscoveryEvent::Ended(error) => println!("  over: {error}"),
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
    let _directory = Directory {
        etcd: etcd.clone(),
        addresses,
    }
    .start();

    println!("▸ two instances register themselves");
    let first = register("services/web", "10.0.0.1:80").metadata("zone a");
    let first = etcd.send(first).await??;
    let second = client.register("services/web", "10.0.0.2:80");
    let second = second.metadata("zone b").await?;
    list.wait_for(|list| list.len() == 2).await?;

    println!("▸ a third one does, whose machine will be cut off");
    let port = cluster.direct_endpoints()[1]
        .rsplit(':')
        .next()
        .map(str::parse);
    let way = TcpProxy::to_port(port.ok_or("an endpoint has a port")??);
    let doomed = Client::connect([format!("http://{}", way.address())]).await?;
    let third = doomed.register("services/web", "10.0.0.3:80");
    let third = third.metadata("zone c").ttl(Duration::from_secs(2));
    let third = third.await?;
    list.wait_for(|list| list.len() == 3).await?;

    println!("▸ killing an etcd member: nobody is lost");
    cluster.member(0).kill();
    // Of a write that was under way when the member died nobody can know: this one may be done twice.
    while let Err(error) = first.update("10.0.0.1:80", "zone d").await {
        println!("  {error}");
    }
    list.changed().await?;
    assert_eq!(list.borrow().len(), 3);

    println!("▸ cutting the third one off: after two seconds it is not listed");
    way.link().set(Fault::Freeze);
    list.wait_for(|list| list.len() == 2).await?;
    println!("▸ it is back, and registers itself again");
    way.link().heal();
    list.wait_for(|list| list.len() == 3).await?;

    println!("▸ all leave");
    first.unregister().await?;
    second.unregister().await?;
    third.unregister().await?;
    list.wait_for(Vec::is_empty).await?;
    client.shutdown().await;
    Ok(())
}
