//! A server for benches: a separate process that sends constant responses as fast as possible.
//!
//! A bench calls [`FastServer::run_if_child`] at the start of `main`; [`FastServer::start`] then runs the same program
//! again as the server. The binary `fast_server` runs the same server on its own.

mod lease;
mod server;
mod watch;

use crate::child_program::{ChildProgram, exit_at_end_of_stdin};

/// Environment variable that makes the program run as the server.
const CHILD: &str = "TESTBED_FAST_SERVER";

/// Events that the server sends on each watch.
#[derive(Clone, Copy, Debug)]
pub struct WatchPlan {
    /// Number of events per watch, one per revision. The metadata `x-events` overrides it. Default: 0.
    pub events: u64,
    /// Number of events per response. The metadata `x-batch` overrides it. Default: 100.
    pub batch: u64,
    /// Size of a value in bytes. The metadata `x-value` overrides it. Default: 64.
    pub value_size: usize,
}

impl Default for WatchPlan {
    fn default() -> Self {
        Self {
            events: 0,
            batch: 100,
            value_size: 64,
        }
    }
}

/// The server process, which is killed when this value is dropped.
#[derive(Debug)]
pub struct FastServer {
    child: ChildProgram,
    endpoints: Vec<String>,
}

impl FastServer {
    /// Runs the server if this process was started as one, and does not return in that case.
    pub fn run_if_child() {
        if let Ok(task) = std::env::var(CHILD) {
            let mut words = task.split(' ');
            let ports = words.next().and_then(|word| word.parse().ok());
            exit_at_end_of_stdin();
            server::run(parse(words), ports.unwrap_or(1));
        }
    }

    /// Runs the server: prints its URL and exits at the end of stdin.
    pub fn run(plan: WatchPlan) -> ! {
        exit_at_end_of_stdin();
        server::run(plan, 1)
    }

    /// Runs this program again as the server. `main` must have called [`FastServer::run_if_child`].
    pub fn start() -> Self {
        Self::start_with(WatchPlan::default())
    }

    /// Like [`FastServer::start`], with events for watches.
    pub fn start_with(plan: WatchPlan) -> Self {
        Self::start_on_ports(plan, 1)
    }

    /// Like [`FastServer::start_with`], on several ports: one process takes the place of as many members, so that their
    /// number does not change the load on the machine.
    pub fn start_on_ports(plan: WatchPlan, ports: usize) -> Self {
        assert!(
            std::env::var_os(CHILD).is_none(),
            "call FastServer::run_if_child at the start of main"
        );
        let task = format!("{ports} {} {} {}", plan.events, plan.batch, plan.value_size);
        let mut child = ChildProgram::start(CHILD, &task);
        let endpoints: Vec<String> = (0..ports).map(|_| child.next_line()).collect();
        assert!(
            endpoints.iter().all(|url| url.starts_with("http://")),
            "call FastServer::run_if_child at the start of main"
        );
        Self { child, endpoints }
    }

    /// Returns the URL of the server: the first one if it has several ports.
    pub fn endpoint(&self) -> String {
        self.endpoints.first().cloned().unwrap_or_default()
    }

    /// Returns the URLs of all ports.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// Parses three numbers: events, batch, value size. Missing numbers keep their default.
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
        value_size: usize::try_from(next(plan.value_size as u64)).unwrap_or(plan.value_size),
    }
}
