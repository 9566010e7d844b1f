//! A node in a process of its own: this test binary, started again, runs a singleton and reports on its standard error
//! what the singleton does and when. All nodes are on one machine, so their clocks agree.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write, stderr, stdin},
    process::{Child, ChildStdin, Command},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, SystemTime},
};

use actix::{Actor, Context, Handler, Message};
use actix_etcd::{Client, kv::put, recipes::election::Ownership};

use crate::support::{process_isolation::ChildTest, wait::until};

pub const TTL: Duration = Duration::from_secs(2);
const ENDPOINTS: &str = "SINGLETON_NODE";
/// Short enough that a node always has work to do when it resumes after a pause.
const BEAT_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Started,
    Beat,
    Stopped,
    /// A write with the fencing token of a stopped actor was not applied.
    StaleWriteRejected,
    /// A write with the fencing token of a stopped actor was applied.
    StaleWriteApplied,
}

const EVENT_NAMES: [(EventKind, &str); 5] = [
    (EventKind::Started, "started"),
    (EventKind::Beat, "beat"),
    (EventKind::Stopped, "stopped"),
    (EventKind::StaleWriteRejected, "stale-write-rejected"),
    (EventKind::StaleWriteApplied, "stale-write-applied"),
];

/// An action of a node's actor.
#[derive(Debug, Clone, Copy)]
pub struct NodeEvent {
    pub kind: EventKind,
    /// Time since the Unix epoch.
    pub at: Duration,
    /// Fencing token of the actor.
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
}

/// Returns the time since the Unix epoch.
pub fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
}

fn report(kind: EventKind, token: i64) {
    // Takes the time first, because the process may be paused at any later step.
    let at = now().as_nanos();
    let (_, name) = EVENT_NAMES
        .iter()
        .find(|(named, _)| *named == kind)
        .unwrap();
    // The parent process may be gone.
    let _ = stderr().write_all(format!("node: {name} {at} {token}\n").as_bytes());
}

/// Reports its start, its beats and its end.
struct ReportingActor {
    leadership: Ownership,
}

impl Actor for ReportingActor {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        report(EventKind::Started, self.leadership.token());
    }
}

impl Drop for ReportingActor {
    fn drop(&mut self) {
        let held = self.leadership.clone();
        report(EventKind::Stopped, held.token());
        // A write by a stale holder, which etcd must reject if the next actor has started.
        actix_rt::spawn(async move {
            let write = held.txn().then([put("work", held.token().to_string())]);
            let applied = write.await.is_ok_and(|response| response.succeeded);
            let kind = if applied {
                EventKind::StaleWriteApplied
            } else {
                EventKind::StaleWriteRejected
            };
            report(kind, held.token());
        });
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Beat;

impl Handler<Beat> for ReportingActor {
    type Result = ();

    fn handle(&mut self, _: Beat, _: &mut Self::Context) {
        report(EventKind::Beat, self.leadership.token());
    }
}

/// In a process that [`NodeProcess::start`] has started: runs a node until the parent closes the standard input, then
/// returns `true`. In any other process: returns `false` at once.
pub fn run_as_node() -> bool {
    let Ok(endpoints) = env::var(ENDPOINTS) else {
        return false;
    };
    actix_rt::System::new().block_on(async {
        let etcd = Client::connect(endpoints.split(',')).await.unwrap();
        let make = |leadership| ReportingActor { leadership };
        let singleton = etcd.singleton("only").ttl(TTL).start(make).unwrap();
        let (end, mut ended) = tokio::sync::oneshot::channel();
        thread::spawn(move || {
            let _ = stdin().read_to_end(&mut Vec::new());
            let _ = end.send(());
        });
        // One message at a time: after a pause the actor handles at most one message that was sent before it.
        while ended.try_recv().is_err() {
            if let Some(actor) = singleton.addr() {
                actor.do_send(Beat);
            }
            tokio::time::sleep(BEAT_INTERVAL).await;
        }
        singleton.stop().await;
        etcd.shutdown().await;
    });
    true
}

/// A process that runs a node. Dropping this value kills the process.
pub struct NodeProcess {
    process: Child,
    stdin: Option<ChildStdin>,
    events: Arc<Mutex<Vec<NodeEvent>>>,
}

impl NodeProcess {
    /// Starts a child process that runs `test`, which must begin with a call of [`run_as_node`].
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
