//! A node that is a process of its own: this binary once more, which runs a singleton and says on its standard error
//! what its actor does and when. All clocks are those of one machine.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write, stderr, stdin},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, SystemTime},
};

use actix::{Actor, Context, Handler, Message};
use actix_etcd::{Client, kv::put, recipes::election::Ownership};

use crate::support::wait::until;

pub const TTL: Duration = Duration::from_secs(2);
const ENDPOINTS: &str = "SINGLETON_NODE";
/// So short that there is always something to do when a process goes on after a pause.
const BEAT: Duration = Duration::from_millis(2);

/// What an actor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    Started,
    Beat,
    Ended,
    /// A write with the token of an actor that has ended was not done.
    Refused,
    /// It was.
    Written,
}

const WORDS: [(Word, &str); 5] = [
    (Word::Started, "started"),
    (Word::Beat, "beat"),
    (Word::Ended, "ended"),
    (Word::Refused, "refused"),
    (Word::Written, "written"),
];

/// What was said, when, and with which token.
#[derive(Debug, Clone, Copy)]
pub struct Said {
    pub word: Word,
    pub at: Duration,
    pub token: i64,
}

impl Said {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.strip_prefix("node: ")?.split(' ');
        let word = parts.next()?;
        Some(Self {
            word: WORDS.iter().find(|(_, text)| *text == word)?.0,
            at: Duration::from_nanos(parts.next()?.parse().ok()?),
            token: parts.next()?.parse().ok()?,
        })
    }
}

/// The time all nodes go by.
pub fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
}

fn say(word: &str, token: i64) {
    // The time first: what comes after it may be paused.
    let line = format!("node: {word} {} {token}\n", now().as_nanos());
    // A parent that is gone does not listen.
    let _ = stderr().write_all(line.as_bytes());
}

/// Says whenever it does something.
struct Only {
    leadership: Ownership,
}

impl Actor for Only {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        say("started", self.leadership.token());
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        let held = self.leadership.clone();
        say("ended", held.token());
        // As if it had not noticed that its time is over.
        actix_rt::spawn(async move {
            let late = held.txn().then([put("work", held.token().to_string())]);
            let written = late.await.is_ok_and(|done| done.succeeded);
            say(if written { "written" } else { "refused" }, held.token());
        });
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Beat;

impl Handler<Beat> for Only {
    type Result = ();

    fn handle(&mut self, _: Beat, _: &mut Self::Context) {
        say("beat", self.leadership.token());
    }
}

/// Is a node, where this process was started to be one, until its parent closes its standard input.
pub fn is_a_node() -> bool {
    let Ok(endpoints) = env::var(ENDPOINTS) else {
        return false;
    };
    actix_rt::System::new().block_on(async {
        let etcd = Client::connect(endpoints.split(',')).await.unwrap();
        let make = |leadership| Only { leadership };
        let singleton = etcd.singleton("only").ttl(TTL).start(make).unwrap();
        let (end, mut ended) = tokio::sync::oneshot::channel();
        thread::spawn(move || {
            let _ = stdin().read_to_end(&mut Vec::new());
            let _ = end.send(());
        });
        // One letter at a time: whatever is done after a pause was decided on after it, but for one step.
        while ended.try_recv().is_err() {
            if let Some(only) = singleton.addr() {
                only.do_send(Beat);
            }
            tokio::time::sleep(BEAT).await;
        }
        singleton.stop().await;
        etcd.shutdown().await;
    });
    true
}

/// A process that runs a node. Ends with this value.
pub struct Node {
    process: Child,
    parent: Option<ChildStdin>,
    said: Arc<Mutex<Vec<Said>>>,
}

impl Node {
    /// Starts this test once more, which must begin by asking whether it [`is_a_node`].
    pub fn start(test: &str, endpoints: &[String]) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(ENDPOINTS, endpoints.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::<Mutex<Vec<Said>>>::default();
        let (lines, heard) = (process.stderr.take().unwrap(), said.clone());
        thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                match Said::parse(&line) {
                    Some(said) => heard.lock().unwrap().push(said),
                    None => println!("{line}"),
                }
            }
        });
        Self {
            parent: process.stdin.take(),
            process,
            said,
        }
    }

    pub fn said(&self) -> Vec<Said> {
        self.said.lock().unwrap().clone()
    }

    pub fn count(&self, word: Word) -> usize {
        let said = self.said.lock().unwrap();
        said.iter().filter(|said| said.word == word).count()
    }

    /// Waits until it has said this so many times.
    pub async fn says(&self, word: Word, times: usize) {
        until(&format!("{word:?} is said {times} times"), || {
            self.count(word) >= times
        })
        .await;
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// SIGSTOP; none of its threads runs when this returns.
    pub async fn pause(&self) {
        self.signal("-STOP");
        let threads = format!("/proc/{}/task", self.process.id());
        until("it stands still", || {
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

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Lets it end by itself, and gives what it said.
    pub async fn end(mut self) -> Vec<Said> {
        drop(self.parent.take());
        let process = Mutex::new(&mut self.process);
        until("the node has ended", || {
            process.lock().unwrap().try_wait().unwrap().is_some()
        })
        .await;
        assert!(self.process.wait().unwrap().success());
        self.said()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
