//! A node in a process of its own: this test binary, started again, runs a workload and reports on its standard error
//! what the workload does and when. All nodes are on one machine, so their clocks agree.

use std::{
    env,
    io::{BufRead, BufReader, Write, stderr, stdin},
    process::{Child, ChildStdin, Command},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use testbed::time_since_boot;
use tokio::sync::watch;

use crate::support::{process_isolation::ChildTest, wait::until};

const ENDPOINTS: &str = "TEST_NODE";
/// Line on the standard input of a node that ends its work, but not its process.
const IDLE: &str = "idle";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The node became the holder.
    Started,
    /// The holder did something, at a time when its ownership was certain.
    Beat,
    /// The holder did something after the deadline of its lease.
    LateBeat,
    /// The holder ended.
    Stopped,
    /// A write with the fencing token of a stopped holder was not applied.
    StaleWriteRejected,
    /// A write with the fencing token of a stopped holder was applied.
    StaleWriteApplied,
    /// The keys of the node's session exist.
    KeysPresent,
    /// The node's session is up, but its keys do not exist.
    KeysMissing,
    /// The node has ended its work and keeps its session.
    Idle,
}

const EVENT_NAMES: [(EventKind, &str); 9] = [
    (EventKind::Started, "started"),
    (EventKind::Beat, "beat"),
    (EventKind::LateBeat, "late-beat"),
    (EventKind::Stopped, "stopped"),
    (EventKind::StaleWriteRejected, "stale-write-rejected"),
    (EventKind::StaleWriteApplied, "stale-write-applied"),
    (EventKind::KeysPresent, "keys-present"),
    (EventKind::KeysMissing, "keys-missing"),
    (EventKind::Idle, "idle"),
];

/// An event in the workload of a node.
#[derive(Debug, Clone, Copy)]
pub struct NodeEvent {
    pub kind: EventKind,
    /// Time since the machine started.
    pub at: Duration,
    /// Fencing token of the holder, or the lease of the session.
    pub token: i64,
}

impl NodeEvent {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.strip_prefix("node: ")?.split(' ');
        let name = parts.next()?;
        Some(Self {
            kind: EVENT_NAMES.iter().find(|(_, text)| *text == name)?.0,
            at: Duration::from_nanos(parts.next()?.parse().ok()?),
            token: parts.next()?.parse().ok()?,
        })
    }

    /// Writes the event for the parent process.
    pub fn report(self) {
        let (_, name) = EVENT_NAMES
            .iter()
            .find(|(kind, _)| *kind == self.kind)
            .unwrap();
        let line = format!("node: {name} {} {}\n", self.at.as_nanos(), self.token);
        // The parent process may be gone.
        let _ = stderr().write_all(line.as_bytes());
    }
}

/// Reports an event of this moment.
pub fn report(kind: EventKind, token: i64) {
    // Takes the time first, because the process may be paused at any later step.
    let at = time_since_boot();
    NodeEvent { kind, at, token }.report();
}

/// Phase of a node, set by the parent process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodePhase {
    Work,
    /// End the work, but keep the session.
    Idle,
    End,
}

/// A node, inside of its own process.
pub struct NodeTask {
    pub endpoints: Vec<String>,
    pub phase: watch::Receiver<NodePhase>,
}

impl NodeTask {
    /// Returns the task of this process if [`NodeProcess::start`] has started it.
    pub fn of_this_process() -> Option<Self> {
        let endpoints = env::var(ENDPOINTS).ok()?;
        let (set_phase, phase) = watch::channel(NodePhase::Work);
        thread::spawn(move || {
            for line in stdin().lines().map_while(Result::ok) {
                assert_eq!(line, IDLE);
                set_phase.send_replace(NodePhase::Idle);
            }
            set_phase.send_replace(NodePhase::End);
        });
        Some(Self {
            endpoints: endpoints.split(',').map(str::to_owned).collect(),
            phase,
        })
    }

    pub fn is_in(&self, phase: NodePhase) -> bool {
        *self.phase.borrow() == phase
    }

    /// Reports that the node is idle, if it has to be, and waits until it has to end.
    pub async fn idle_until_end(&mut self) {
        if self.is_in(NodePhase::Idle) {
            report(EventKind::Idle, 0);
        }
        let _ = self.phase.wait_for(|phase| *phase == NodePhase::End).await;
    }
}

/// A process that runs a node. Dropping this value kills the process.
pub struct NodeProcess {
    process: Child,
    stdin: Option<ChildStdin>,
    events: Arc<Mutex<Vec<NodeEvent>>>,
}

impl NodeProcess {
    /// Starts a child process that runs `test`, which must begin with a call of [`NodeTask::of_this_process`].
    pub fn start(test: ChildTest, endpoints: &[String]) -> Self {
        let mut process = test.env(ENDPOINTS, endpoints.join(",")).spawn();
        let events = Arc::<Mutex<Vec<NodeEvent>>>::default();
        let (stderr, received) = (process.stderr.take().unwrap(), events.clone());
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                match NodeEvent::parse(&line) {
                    Some(event) => received.lock().unwrap().push(event),
                    None => println!("{line}"),
                }
            }
        });
        Self {
            stdin: process.stdin.take(),
            process,
            events,
        }
    }

    pub fn events(&self) -> Vec<NodeEvent> {
        self.events.lock().unwrap().clone()
    }

    /// Returns the number of events of one kind.
    pub fn count(&self, kind: EventKind) -> usize {
        let events = self.events.lock().unwrap();
        events.iter().filter(|event| event.kind == kind).count()
    }

    /// Waits until the node has reported `count` events of one kind.
    pub async fn wait_for(&self, kind: EventKind, count: usize) {
        until(
            &format!("the node has reported {kind:?} {count} times"),
            || self.count(kind) >= count,
        )
        .await;
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// Sends SIGSTOP and waits until all threads of the process have stopped.
    pub async fn pause(&self) {
        self.signal("-STOP");
        let threads = format!("/proc/{}/task", self.process.id());
        until("all threads of the node have stopped", || {
            let mut threads = std::fs::read_dir(&threads).unwrap();
            threads.all(|thread| {
                let stat = thread.unwrap().path().join("stat");
                let stat = std::fs::read_to_string(stat).unwrap_or_default();
                stat.rsplit_once(") ")
                    .is_none_or(|(_, rest)| rest.starts_with('T'))
            })
        })
        .await;
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Ends the work of the node, but not its session, and waits until the node is idle.
    pub async fn make_idle(&mut self) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{IDLE}").unwrap();
        self.wait_for(EventKind::Idle, 1).await;
    }

    /// Stops the node gracefully. Returns its events.
    pub async fn stop(mut self) -> Vec<NodeEvent> {
        drop(self.stdin.take());
        let process = Mutex::new(&mut self.process);
        until("the node has ended", || {
            process.lock().unwrap().try_wait().unwrap().is_some()
        })
        .await;
        assert!(self.process.wait().unwrap().success());
        self.events()
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
