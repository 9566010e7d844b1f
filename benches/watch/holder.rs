//! The client with many watches, in a process of its own: its memory is nothing but the client's.
//!
//! The bench starts itself again as the holder. It says a line when all watches are open, and a line each time the
//! last of them has shown the next write.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use actix_etcd::{Client, Watch, WatchItem};

use crate::process::Memory;

const CHILD: &str = "WATCH_BENCH_HOLDER";
/// How many watches are being opened at a time.
const OPENING: usize = 500;

/// The bench's end of the holder.
pub struct Holder {
    child: Child,
    _stdin: ChildStdin,
    told: BufReader<ChildStdout>,
}

/// What all watches have shown, or 0 when they have just been opened; and the memory above that of a single watch.
pub struct Told {
    pub revision: i64,
    pub memory: Memory,
}

impl Holder {
    /// Becomes the holder if this process was started as one; never returns then.
    pub fn run_if_child() {
        if let Ok(task) = std::env::var(CHILD) {
            std::thread::spawn(|| {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                std::process::exit(0);
            });
            let mut words = task.split(' ');
            let count = words.next().and_then(|count| count.parse().ok());
            let endpoints: Vec<&str> = words.collect();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime starts");
            runtime.block_on(hold(&endpoints, count.expect("a number of watches")));
            std::process::exit(0);
        }
    }

    /// Starts it.
    pub fn start(endpoints: &[String], count: usize) -> Self {
        let program = std::env::current_exe().expect("a program knows where it is");
        let mut child = Command::new(program)
            .env(CHILD, format!("{count} {}", endpoints.join(" ")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program can be started again");
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        Self {
            child,
            _stdin: stdin,
            told: BufReader::new(stdout),
        }
    }

    /// Waits for its next line. It blocks: the testbed has threads of its own.
    pub fn next(&mut self) -> Told {
        let mut line = String::new();
        self.told.read_line(&mut line).expect("the holder tells");
        let mut numbers = line.split_whitespace().map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten().expect("a number");
        Told {
            revision: next(),
            memory: Memory {
                resident: next().unsigned_abs(),
                peak: next().unsigned_abs(),
            },
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn hold(endpoints: &[&str], count: usize) {
    let etcd = Client::connect(endpoints.iter().copied())
        .await
        .expect("connects");
    // What a first watch starts is not a watch's cost.
    let first = etcd.watch("key").await.expect("opens");
    let before = Memory::now();
    let mut watches = Vec::with_capacity(count);
    while watches.len() < count {
        let some = (watches.len()..count).take(OPENING);
        let opening: Vec<_> = some
            .map(|_| tokio::spawn(etcd.watch("key").into_future()))
            .collect();
        for opened in opening {
            watches.push(opened.await.expect("no panic").expect("opens"));
        }
    }
    drop(first);
    tell(0, before);
    loop {
        let mut revision = 0;
        for watch in &mut watches {
            let told = next(watch).await;
            assert!(revision == 0 || revision == told, "a watch missed a write");
            revision = told;
        }
        tell(revision, before);
    }
}

fn tell(revision: i64, before: Memory) {
    let Memory { resident, peak } = Memory::now();
    let above = |figure: u64| figure.saturating_sub(before.resident);
    println!("{revision} {} {}", above(resident), above(peak));
}

/// The revision of the next event.
async fn next(watch: &mut Watch) -> i64 {
    loop {
        match watch.next().await.expect("goes on") {
            WatchItem::Events(events) => return events.revision(),
            WatchItem::Ended(error) => panic!("{error}"),
            _ => {}
        }
    }
}
