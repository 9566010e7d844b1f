//! An actor holds a lease and receives its events: renewed, at risk, lost.
//!
//! `cargo run --example lease_actor` starts three members, kills one, and at the end revokes the lease.

use std::{error::Error, time::Duration};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, ResponseFuture};
use actix_etcd::{
    Client, Etcd, Lease,
    kv::{get, put},
    lease::{LeaseEvent, LeaseLost, LeaseMessage, grant, revoke},
};
use testbed::Cluster;
use tokio::sync::{mpsc, oneshot};

/// Registers itself in etcd. Its key exists as long as its lease.
struct Worker {
    etcd: Addr<Etcd>,
    lease: Option<Lease>,
    renewals: mpsc::Sender<()>,
    loss: Option<oneshot::Sender<LeaseLost>>,
}

impl Actor for Worker {
    type Context = Context<Self>;
}

/// Registers the worker. Returns the id of its lease.
#[derive(Message)]
#[rtype(result = "actix_etcd::Result<i64>")]
struct Register;

impl Handler<Register> for Worker {
    type Result = ResponseFuture<actix_etcd::Result<i64>>;

    fn handle(&mut self, _: Register, ctx: &mut Context<Self>) -> Self::Result {
        let (etcd, worker) = (self.etcd.clone(), ctx.address());
        Box::pin(async move {
            let lease = grant(Duration::from_secs(2))
                .keep_alive()
                .deliver_to(worker.clone().recipient());
            let lease = etcd.send(lease).await??;
            let id = lease.id();
            etcd.send(put("workers/1", "running").lease(id)).await??;
            worker.send(KeepLease(lease)).await?;
            Ok(id)
        })
    }
}

/// Stores the lease in the actor. It is renewed until the `Lease` is dropped.
#[derive(Message)]
#[rtype(result = "()")]
struct KeepLease(Lease);

impl Handler<KeepLease> for Worker {
    type Result = ();

    fn handle(&mut self, KeepLease(lease): KeepLease, _: &mut Context<Self>) {
        self.lease = Some(lease);
    }
}

impl Handler<LeaseMessage> for Worker {
    type Result = ();

    fn handle(&mut self, message: LeaseMessage, ctx: &mut Context<Self>) {
        match message.event {
            LeaseEvent::Renewed { .. } => {
                println!("  lease renewed");
                let _ = self.renewals.try_send(());
            }
            LeaseEvent::AtRisk { .. } => println!("  lease at risk: pause work that needs it"),
            LeaseEvent::Recovered { .. } => println!("  lease certain again: resume work"),
            LeaseEvent::Lost(reason) => {
                println!("  lease lost: {reason:?}");
                if let Some(loss) = self.loss.take() {
                    let _ = loss.send(reason);
                }
                ctx.stop();
            }
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
    let (renewals, mut renewed) = mpsc::channel(1);
    let (loss, lost) = oneshot::channel();
    let worker = Worker {
        etcd: etcd.clone(),
        lease: None,
        renewals,
        loss: Some(loss),
    };

    println!("▸ an actor registers itself with a lease of two seconds");
    let lease = worker.start().send(Register).await??;
    renewed.recv().await;
    println!("▸ killing a member: the others keep the lease alive");
    cluster.member(0).kill();
    for _ in 0..5 {
        renewed.recv().await;
    }
    assert_eq!(etcd.send(get("workers/1")).await??.count, 1);
    println!("▸ revoking the lease without the actor");
    etcd.send(revoke(lease)).await??;
    assert_eq!(lost.await?, LeaseLost::Revoked);
    client.shutdown().await;
    Ok(())
}
