//! A server for benches: in a process of its own, with constant answers, as fast as they can be given.
//!
//! A bench is its own server: it calls [`FastServer::run_if_child`] first thing in `main`, and [`FastServer::start`]
//! starts the same program again as the server. The binary `fast_server` is the same, to be used by hand.

mod server;
mod watch;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Tells a program that it is to be the server.
const CHILD: &str = "TESTBED_FAST_SERVER";

/// What a watch stream gets.
#[derive(Clone, Copy, Debug)]
pub struct WatchPlan {
    /// How many events a watch gets after it was created, one a revision; 0 for none. Metadata `x-events` wins.
    pub events: u64,
    /// How many of them are sent in one answer. Metadata `x-batch` wins.
    pub batch: u64,
    /// The size of a value. Metadata `x-value` wins.
    pub value: usize,
}

impl Default for WatchPlan {
    fn default() -> Self {
        Self {
            events: 0,
            batch: 100,
            value: 64,
        }
    }
}

/// The server's process; it ends when this is dropped.
#[derive(Debug)]
pub struct FastServer {
    child: Child,
    /// The server ends when this closes, also when we are killed.
    _stdin: ChildStdin,
    endpoint: String,
}

impl FastServer {
    /// Becomes the server if this process was started as one; never returns then.
    pub fn run_if_child() {
        if let Ok(plan) = std::env::var(CHILD) {
            Self::run(parse(plan.split(' ')));
        }
    }

    /// Is the server: prints its address, ends when its input does.
    pub fn run(plan: WatchPlan) -> ! {
        server::run(plan, || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        })
    }

    /// Starts this program again as the server. `main` must have called [`FastServer::run_if_child`].
    pub fn start() -> Self {
        Self::start_with(WatchPlan::default())
    }

    /// The same, with a plan for watches.
    pub fn start_with(plan: WatchPlan) -> Self {
        assert!(
            std::env::var_os(CHILD).is_none(),
            "call FastServer::run_if_child first thing in main"
        );
        let program = std::env::current_exe().expect("a program knows where it is");
        let mut child = Command::new(program)
            .env(
                CHILD,
                format!("{} {} {}", plan.events, plan.batch, plan.value),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program can be started again");
        let stdin = child.stdin.take().expect("it is piped");
        let mut endpoint = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout)
            .read_line(&mut endpoint)
            .expect("the server prints its address");
        let endpoint = endpoint.trim().to_owned();
        assert!(
            endpoint.starts_with("http://"),
            "call FastServer::run_if_child first thing in main"
        );
        Self {
            child,
            _stdin: stdin,
            endpoint,
        }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Its process, for the CPU it uses.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for FastServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A plan from three numbers: events, batch, value. What is missing stays as it is by default.
pub fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> WatchPlan {
    let mut next = |default: u64| {
        words
            .next()
            .and_then(|word| word.parse().ok())
            .unwrap_or(default)
    };
    let plan = WatchPlan::default();
    let (events, batch) = (next(plan.events), next(plan.batch).max(1));
    WatchPlan {
        events,
        batch,
        value: usize::try_from(next(plan.value as u64)).unwrap_or(plan.value),
    }
}
