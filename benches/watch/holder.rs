//! A client with many watches in a separate process, so that the memory of the process is that of the client.
//!
//! The bench runs itself again as the holder. The holder prints a line when all watches are open, and a line each time
//! all watches have received the next write.

use actix_etcd::{Client, Watch, WatchEvent};
use testbed::{ChildProgram, exit_at_end_of_stdin};

use crate::memory::Memory;

const CHILD: &str = "WATCH_BENCH_HOLDER";
/// Number of watches opened concurrently.
const OPEN_BATCH: usize = 500;

/// The holder process, as seen by the bench.
pub struct WatchHolder(ChildProgram);

/// Line of the holder.
pub struct HolderReport {
    /// Revision that all watches have received; 0 when they have just been opened.
    pub revision: i64,
    /// Memory in excess of a client with one watch.
    pub memory: Memory,
}

impl WatchHolder {
    /// Runs the holder if this process was started as one, and does not return in that case.
    pub fn run_if_child() {
        if let Ok(task) = std::env::var(CHILD) {
            exit_at_end_of_stdin();
            let mut arguments = task.split(' ');
            let count = arguments.next().and_then(|count| count.parse().ok());
            let endpoints: Vec<&str> = arguments.collect();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("start the runtime");
            runtime.block_on(hold(&endpoints, count.expect("number of watches")));
            std::process::exit(0);
        }
    }

    /// Starts the holder.
    pub fn start(endpoints: &[String], count: usize) -> Self {
        let task = format!("{count} {}", endpoints.join(" "));
        Self(ChildProgram::start(CHILD, &task))
    }

    /// Waits for the next report. Blocks the thread; the testbed has its own threads.
    pub fn next_report(&mut self) -> HolderReport {
        let line = self.0.next_line();
        let mut numbers = line.split_whitespace().map(|word| word.parse().ok());
        let mut next = || {
            numbers
                .next()
                .flatten()
                .expect("a number in the holder's output")
        };
        HolderReport {
            revision: next(),
            memory: Memory {
                resident: next().unsigned_abs(),
                peak: next().unsigned_abs(),
            },
        }
    }
}

async fn hold(endpoints: &[&str], count: usize) {
    let etcd = Client::connect(endpoints.iter().copied())
        .await
        .expect("connect");
    // The first watch also starts the stream, which is not part of the cost per watch.
    let first = etcd.watch("key").await.expect("open a watch");
    let before = Memory::now();
    let mut watches = Vec::with_capacity(count);
    while watches.len() < count {
        let batch = (watches.len()..count).take(OPEN_BATCH);
        let opening: Vec<_> = batch
            .map(|_| tokio::spawn(etcd.watch("key").into_future()))
            .collect();
        for opened in opening {
            watches.push(opened.await.expect("no panic").expect("open a watch"));
        }
    }
    drop(first);
    print_report(0, before);
    loop {
        let mut revision = 0;
        for watch in &mut watches {
            let received = next_revision(watch).await;
            assert!(
                revision == 0 || revision == received,
                "a watch missed a write"
            );
            revision = received;
        }
        print_report(revision, before);
    }
}

fn print_report(revision: i64, before: Memory) {
    let Memory { resident, peak } = Memory::now();
    let excess = |bytes: u64| bytes.saturating_sub(before.resident);
    println!("{revision} {} {}", excess(resident), excess(peak));
}

/// Returns the revision of the next event.
async fn next_revision(watch: &mut Watch) -> i64 {
    loop {
        match watch.next().await.expect("the watch continues") {
            WatchEvent::Events(events) => return events.revision(),
            WatchEvent::Ended(error) => panic!("{error}"),
            _ => {}
        }
    }
}
