//! A load program that runs until stopped, and the calls it reports.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use crate::load_program::LoadProgram;

/// One call, as the client reports it. Times are microseconds since 1970, comparable between processes.
#[derive(Clone, Debug)]
pub struct CallRecord {
    pub sent: u128,
    pub ended: u128,
    /// Error kind and outcome of a failed call.
    pub failure: Option<(String, String)>,
    pub key: String,
}

impl CallRecord {
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

    /// Returns the number of the caller, which is part of the key.
    pub fn caller(&self) -> &str {
        self.key.split('/').nth(1).unwrap_or_default()
    }
}

/// A running load program.
pub struct LoadProcess {
    child: Child,
    stdin: ChildStdin,
    calls: Arc<Mutex<Vec<CallRecord>>>,
    reader: JoinHandle<()>,
}

impl LoadProcess {
    pub fn start(program: &LoadProgram, arguments: &[(&str, String)]) -> Self {
        let arguments: Vec<(&str, &str)> = arguments
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let mut child = program
            .command("stream", &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the load program");
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let calls: Arc<Mutex<Vec<CallRecord>>> = Arc::default();
        let received = calls.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let call = CallRecord::parse(&line);
                received
                    .lock()
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
        let timeout = Duration::from_secs(20);
        let success = async {
            loop {
                if self.has_succeeded() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let result = tokio::time::timeout(timeout, success).await;
        result.expect("a call to a healthy cluster succeeds in time");
    }

    fn has_succeeded(&self) -> bool {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().any(|call| call.failure.is_none())
    }

    /// Stops the program. Returns all completed calls, in the order of completion.
    pub fn stop(mut self) -> Vec<CallRecord> {
        drop(self.stdin);
        let _ = self.child.wait();
        let _ = self.reader.join();
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.sort_by_key(|call| call.ended);
        std::mem::take(&mut calls)
    }
}
