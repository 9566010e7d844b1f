//! The memory and the traffic of a hedged watch, compared with a plain one.

use actix_etcd::{Client, WatchEvent};
use testbed::{ChildProgram, Cluster, Direction, exit_at_end_of_stdin};

use crate::memory::Memory;

const CHILD: &str = "LATENESS_BENCH_HOLDER";
/// Number of watches of a holder, and of those opened concurrently.
const WATCHES: usize = 5_000;
const OPEN_BATCH: usize = 500;
/// Number of events of the traffic measurement.
const EVENTS: usize = 2_000;
const VALUE: usize = 100;

/// A process that holds many watches, so that its memory is that of the client.
pub struct WatchHolder;

impl WatchHolder {
    /// Runs the holder if this process was started as one, and does not return in that case.
    pub fn run_if_child() {
        if let Ok(task) = std::env::var(CHILD) {
            exit_at_end_of_stdin();
            let mut words = task.split(' ');
            let hedged = words.next() == Some("hedged");
            let endpoints: Vec<&str> = words.collect();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("start the runtime");
            runtime.block_on(hold(&endpoints, hedged));
            std::process::exit(0);
        }
    }
}

async fn open(etcd: Client, hedged: bool) -> actix_etcd::Watch {
    let open = etcd.watch("key");
    let open = if hedged { open.hedged() } else { open };
    open.await.expect("open a watch")
}

async fn hold(endpoints: &[&str], hedged: bool) {
    let etcd = Client::connect(endpoints.iter().copied());
    let etcd = etcd.await.expect("connect");
    // The first watch also starts the streams, which are not part of the cost per watch.
    let _first = open(etcd.clone(), hedged).await;
    let before = Memory::now().resident;
    let mut watches = Vec::with_capacity(WATCHES);
    while watches.len() < WATCHES {
        let batch = (watches.len()..WATCHES).take(OPEN_BATCH);
        let opening: Vec<_> = batch
            .map(|_| tokio::spawn(open(etcd.clone(), hedged)))
            .collect();
        for opened in opening {
            watches.push(opened.await.expect("no panic"));
        }
    }
    // The second legs are created soon after the first ones.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    println!("{}", Memory::now().resident.saturating_sub(before));
    std::future::pending::<()>().await;
}

/// Prints the memory per idle watch.
pub async fn print_memory() {
    for kind in ["plain", "hedged"] {
        let cluster = Cluster::start(3).await;
        let task = format!("{kind} {}", cluster.endpoints().join(" "));
        let mut holder = ChildProgram::start(CHILD, &task);
        let bytes: usize = holder.next_line().trim().parse().expect("a number");
        println!("{kind}: {} bytes of memory per idle watch", bytes / WATCHES);
    }
}

fn received(cluster: &Cluster) -> u64 {
    let members = cluster.members();
    let bytes = members
        .iter()
        .map(|member| member.client_link().bytes(Direction::ToClient));
    bytes.sum()
}

/// Prints the bytes that a client receives per event.
pub async fn print_traffic() {
    for hedged in [false, true] {
        let cluster = Cluster::start(3).await;
        let etcd = Client::connect(cluster.endpoints()).await.expect("connect");
        let writer = Client::connect(cluster.direct_endpoints());
        let writer = writer.await.expect("connect");
        let mut watch = open(etcd.clone(), hedged).await;
        // Both legs have caught up when they have progress.
        watch.request_progress().await.expect("progress");
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let before = received(&cluster);
        let value = "v".repeat(VALUE);
        for _ in 0..EVENTS {
            writer.put("key", value.clone()).await.expect("put");
        }
        let mut events = 0;
        while events < EVENTS {
            if let Some(WatchEvent::Events(received)) = watch.next().await {
                events += received.len();
            }
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let bytes = received(&cluster) - before;
        let kind = if hedged { "hedged" } else { "plain" };
        println!(
            "{kind}: {} bytes received per event with a value of {VALUE} bytes",
            bytes / EVENTS as u64
        );
        etcd.shutdown().await;
        writer.shutdown().await;
    }
}
