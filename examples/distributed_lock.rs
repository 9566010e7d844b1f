//! A lock of the whole cluster: for a piece of work, for an actor of yours, and what happens when it is lost.
//!
//! `cargo run --example distributed_lock` starts three members and kills one. Programs in Go and `etcdctl lock printer`
//! would wait in the same queue.

use std::{error::Error, time::Duration};

use actix::{Actor, Context, Handler};
use actix_etcd::{
    Client,
    kv::put,
    recipes::mutex::{LockEvent, Ownership},
};
use testbed::Cluster;
use tokio::sync::watch;

/// Prints, while it has the printer.
struct Printer {
    has_it: watch::Sender<Option<Ownership>>,
}

impl Actor for Printer {
    type Context = Context<Self>;
}

impl Handler<LockEvent> for Printer {
    type Result = ();

    fn handle(&mut self, event: LockEvent, _: &mut Context<Self>) {
        match event {
            LockEvent::Acquired(held) => {
                println!("  the actor has the lock, with token {}", held.token());
                self.has_it.send_replace(Some(held));
            }
            LockEvent::Lost(loss) => {
                println!("  the actor has lost the lock: {loss}");
                self.has_it.send_replace(None);
            }
            LockEvent::Released => println!("  the actor has given the lock back"),
            LockEvent::Failed(error) => println!("  the actor can't have the lock: {error}"),
            _ => {}
        }
    }
}

async fn print_pages(worker: u32, held: Ownership) -> actix_etcd::Result<()> {
    for page in 1..=2 {
        println!("  worker {worker} prints page {page}");
        // Written only while the lock is held, whatever the clocks say.
        let text = format!("page {page} of worker {worker}");
        let done = held.txn().then([put("printed", text)]).await?;
        assert!(done.succeeded);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("▸ starting three etcd members on this machine");
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await?;

    println!("▸ three workers want the printer, one has it at a time");
    let workers = (1..=3).map(|worker| {
        let etcd = etcd.clone();
        actix_rt::spawn(async move {
            // A worker of its own would be a process of its own: with a session of its own.
            let session = etcd.session(Duration::from_secs(5)).await?;
            let mutex = session.mutex("printer");
            mutex.scope(|held| print_pages(worker, held)).await?
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await??;
    }

    println!("▸ work that takes too long is cancelled when the lock is lost");
    let session = etcd.session(Duration::from_secs(5)).await?;
    let forever = session.mutex("printer");
    let forever = forever.scope(|_| std::future::pending::<()>());
    let (cancelled, revoked) = tokio::join!(forever, async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        etcd.revoke(session.lease().unwrap_or_default()).await
    });
    revoked?;
    println!(
        "  cancelled: {}",
        cancelled.err().ok_or("it was cancelled")?
    );

    println!("▸ an actor wants the printer, and is told by messages");
    let (has_it, mut printer) = watch::channel(None);
    let actor = Printer { has_it }.start();
    let session = etcd.session(Duration::from_secs(5)).await?;
    let claim = session
        .mutex("printer")
        .lock()
        .deliver_to(actor.clone().recipient());
    printer.wait_for(Option::is_some).await?;
    println!("▸ killing a member: the lock is kept by the others");
    cluster.member(0).kill();
    println!("▸ an operator takes the lock away");
    // Of a write that was under way when the member died nobody can know: this one may be done twice.
    while let Err(error) = etcd.delete("printer/").prefix().await {
        println!("  {error}");
    }
    printer.wait_for(Option::is_none).await?;
    claim.release().await;
    etcd.shutdown().await;
    Ok(())
}
