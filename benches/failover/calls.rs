//! A client at work in a process of its own, and what it tells of each call.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use crate::program::Program;

/// One call, as its client saw it. Times are microseconds since 1970: a clock that all processes share.
#[derive(Clone, Debug)]
pub struct Call {
    pub sent: u128,
    pub ended: u128,
    /// What went wrong: the kind of error, and what it says of the outcome.
    pub failure: Option<(String, String)>,
    pub key: String,
}

impl Call {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (sent, ended) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (kind, outcome, key) = (words.next()?, words.next()?, words.next()?);
        Some(Self {
            sent,
            ended,
            failure: (kind != "ok").then(|| (kind.to_owned(), outcome.to_owned())),
            key: key.to_owned(),
        })
    }

    /// Which of the callers it was.
    pub fn caller(&self) -> &str {
        self.key.split('/').nth(1).unwrap_or_default()
    }
}

pub fn now() -> u128 {
    let since = SystemTime::UNIX_EPOCH.elapsed();
    since.expect("1970 is over").as_micros()
}

/// A load program that calls without end.
pub struct Running {
    child: Child,
    stdin: ChildStdin,
    calls: Arc<Mutex<Vec<Call>>>,
    reader: JoinHandle<()>,
}

impl Running {
    pub fn start(program: &Program, arguments: &[(&str, String)]) -> Self {
        let arguments: Vec<(&str, &str)> = arguments
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let mut child = program
            .command("stream", &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the load program can be started");
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let told = calls.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let call = Call::parse(&line);
                told.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend(call);
            }
        });
        Self {
            child,
            stdin,
            calls,
            reader,
        }
    }

    pub async fn wait_for_success(&self) {
        let patience = Duration::from_secs(20);
        let success = async {
            loop {
                if self.has_succeeded() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let began = tokio::time::timeout(patience, success).await;
        began.expect("a client gets through to a healthy cluster");
    }

    fn has_succeeded(&self) -> bool {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().any(|call| call.failure.is_none())
    }

    /// Ends it; every call that had ended, in the order they did.
    pub fn stop(mut self) -> Vec<Call> {
        drop(self.stdin);
        let _ = self.child.wait();
        let _ = self.reader.join();
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.sort_by_key(|call| call.ended);
        std::mem::take(&mut calls)
    }
}
