//! An actor of yours holds a lease and is told what happens to it: renewed, at risk, lost.
//!
//! `cargo run --example lease_actor` starts three members, kills one, and in the end revokes the lease behind the
//! actor's back.

use std::{error::Error, time::Duration};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, ResponseFuture};
use actix_etcd::{
    Client, Etcd, Lease,
    kv::{get, put},
    lease::{LeaseEvent, LeaseLost, LeaseMessage, grant, revoke},
};
use testbed::Cluster;
use tokio::sync::{mpsc, oneshot};

/// Is registered for as long as it lives, and its lease does.
struct Worker {
    etcd: actix::Addr<Etcd>,
    lease: Option<Lease>,
    renewed: mpsc::Sender<()>,
    lost: Option<oneshot::Sender<LeaseLost>>,
}

impl Actor for Worker {
    type Context = Context<Self>;
}

/// Register. Gives the lease's id.
#[derive(Message)]
#[rtype(result = "Result<i64, Box<dyn Error + Send + Sync>>")]
struct Register;

impl Handler<Register> for Worker {
    type Result = ResponseFuture<Result<i64, Box<dyn Error + Send + Sync>>>;

    fn handle(&mut self, _: Register, ctx: &mut Context<Self>) -> Self::Result {
        let (etcd, worker) = (self.etcd.clone(), ctx.address());
        Box::pin(async move {
            let lease = grant(Duration::from_secs(2)).keep_alive();
            let lease = etcd
                .send(lease.deliver_to(worker.clone().recipient()))
                .await??;
            let id = lease.id();
            etcd.send(put("workers/me", "at work").lease(id)).await??;
            worker.send(Hold(lease)).await?;
            Ok(id)
        })
    }
}

/// Hold this lease: it is kept alive as long as somebody does.
#[derive(Message)]
#[rtype(result = "()")]
struct Hold(Lease);

impl Handler<Hold> for Worker {
    type Result = ();

    fn handle(&mut self, Hold(lease): Hold, _: &mut Context<Self>) {
        self.lease = Some(lease);
    }
}

impl Handler<LeaseMessage> for Worker {
    type Result = ();

    fn handle(&mut self, news: LeaseMessage, ctx: &mut Context<Self>) {
        match news.event {
            LeaseEvent::Renewed { .. } => {
                println!("  renewed");
                let _ = self.renewed.try_send(());
            }
            LeaseEvent::AtRisk { .. } => println!("  at risk: stop what must not be done twice"),
            LeaseEvent::Lost(reason) => {
                println!("  lost: {reason:?}");
                if let Some(lost) = self.lost.take() {
                    let _ = lost.send(reason);
                }
                ctx.stop();
            }
            _ => {}
        }
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("▸ starting three etcd members on this machine");
    let cluster = Cluster::start(3).await;
    let client = Client::connect(cluster.endpoints()).await?;
    let etcd = Etcd::new(client.clone()).start();
    let (renewed, mut renewals) = mpsc::channel(1);
    let (lost, was_lost) = oneshot::channel();
    let worker = Worker {
        etcd: etcd.clone(),
        lease: None,
        renewed,
        lost: Some(lost),
    };

    println!("▸ an actor registers itself, with a lease of two seconds");
    let lease = worker.start().send(Register).await??;
    renewals.recv().await;
    println!("▸ killing a member: the lease is kept by the others");
    cluster.member(0).kill();
    for _ in 0..5 {
        renewals.recv().await;
    }
    let still_there = etcd.send(get("workers/me")).await??;
    assert_eq!(still_there.count, 1);
    println!("▸ revoking the lease behind its back");
    etcd.send(revoke(lease)).await??;
    assert_eq!(was_lost.await?, LeaseLost::Revoked);
    client.shutdown().await;
    Ok(())
}
