//! A distributed lock: for a piece of work, for an actor, and what happens when it is lost.
//!
//! `cargo run --example distributed_lock` starts three members and kills one. Go programs and `etcdctl lock printer`
//! use the same keys: they would wait in the same queue.

use std::{error::Error, time::Duration};

use actix::{Actor, Context, Handler};
use actix_etcd::{
    Client,
    kv::put,
    recipes::mutex::{LockEvent, Ownership},
};
use testbed::Cluster;
use tokio::sync::watch;

const TTL: Duration = Duration::from_secs(5);

/// An actor that works while it owns the lock.
struct Printer {
    ownership: watch::Sender<Option<Ownership>>,
}

impl Actor for Printer {
    type Context = Context<Self>;
}

impl Handler<LockEvent> for Printer {
    type Result = ();

    fn handle(&mut self, event: LockEvent, _: &mut Context<Self>) {
        match event {
            LockEvent::Acquired(ownership) => {
                println!("  lock acquired, fencing token {}", ownership.token());
                self.ownership.send_replace(Some(ownership));
            }
            LockEvent::Lost(reason) => {
                println!("  lock lost: {reason}");
                self.ownership.send_replace(None);
            }
            LockEvent::Released => println!("  lock released"),
            LockEvent::Failed(error) => println!("  cannot acquire the lock: {error}"),
            _ => {}
        }
    }
}

async fn print_pages(worker: u32, ownership: Ownership) -> actix_etcd::Result<()> {
    for page in 1..=2 {
        println!("  worker {worker} prints page {page}");
        // etcd applies this write only while the lock is held, even if this process was paused.
        let text = format!("page {page} of worker {worker}");
        let txn = ownership.txn().then(put("printed", text)).await?;
        assert!(txn.succeeded);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("▸ starting three etcd members on this machine");
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await?;

    println!("▸ three workers use the printer, one at a time");
    let workers = (1..=3).map(|worker| {
        let etcd = etcd.clone();
        actix_rt::spawn(async move {
            // One session per owner: usually one per process.
            let session = etcd.session(TTL).await?;
            let mutex = session.mutex("printer");
            mutex
                .scope(|ownership| print_pages(worker, ownership))
                .await?
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await??;
    }

    println!("▸ work is cancelled when its lock is lost");
    let session = etcd.session(TTL).await?;
    let mutex = session.mutex("printer");
    let endless_work = mutex.scope(|_| std::future::pending::<()>());
    let (result, revoked) = tokio::join!(endless_work, async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        etcd.revoke(session.lease().unwrap_or_default()).await
    });
    revoked?;
    println!("  cancelled: {}", result.err().ok_or("not cancelled")?);

    println!("▸ an actor waits for the lock and receives lock events");
    let (ownership, mut state) = watch::channel(None);
    let printer = Printer { ownership }.start();
    let session = etcd.session(TTL).await?;
    let claim = session
        .mutex("printer")
        .lock()
        .deliver_to(printer.recipient());
    state.wait_for(Option::is_some).await?;
    println!("▸ killing a member: the lock stays held");
    cluster.member(0).kill();
    println!("▸ deleting the lock's keys, as an operator can");
    // A write in flight when the member dies may fail. This one is safe to repeat.
    while let Err(error) = etcd.delete("printer/").prefix().await {
        println!("  {error}");
    }
    state.wait_for(Option::is_none).await?;
    claim.release().await;
    etcd.shutdown().await;
    Ok(())
}
