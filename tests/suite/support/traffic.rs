//! Writers and readers that never pause, and checks of their results.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_etcd::{Client, Error, Outcome};
use testbed::Cluster;
use tokio::task::JoinHandle;

use crate::support::wait::until;

/// A write and its result.
#[derive(Debug)]
pub struct Write {
    pub value: String,
    pub ended: Instant,
    pub result: Result<(), Error>,
}

/// Writers of unique values under one prefix.
pub struct Writers {
    stop: Arc<AtomicBool>,
    succeeded: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Vec<Write>>>,
}

impl Writers {
    pub fn start(client: &Client, count: usize, prefix: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let succeeded = Arc::new(AtomicUsize::new(0));
        let tasks = (0..count)
            .map(|writer| {
                let (client, stop, succeeded) = (client.clone(), stop.clone(), succeeded.clone());
                let key = format!("{prefix}{writer}");
                tokio::spawn(async move {
                    let mut writes = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let value = format!("{writer}/{}", writes.len());
                        let result = client.put(&key, &value).await.map(drop);
                        succeeded.fetch_add(usize::from(result.is_ok()), Ordering::Relaxed);
                        writes.push(Write {
                            value,
                            ended: Instant::now(),
                            result,
                        });
                        // A call on a refused connection can fail without yielding.
                        tokio::task::yield_now().await;
                    }
                    writes
                })
            })
            .collect();
        Self {
            stop,
            succeeded,
            tasks,
        }
    }

    /// Waits until this many more writes have succeeded.
    pub async fn wait_for_writes(&self, more: usize) {
        let expected = self.succeeded.load(Ordering::Relaxed) + more;
        let written = || self.succeeded.load(Ordering::Relaxed) >= expected;
        until("writes succeed", written).await;
    }

    /// Stops the writers and returns all writes.
    pub async fn finish(self) -> Vec<Write> {
        self.stop.store(true, Ordering::Relaxed);
        let mut writes = Vec::new();
        for task in self.tasks {
            writes.extend(task.await.expect("a writer does not panic"));
        }
        writes
    }
}

/// Returns the longest time between two successful writes.
pub fn longest_gap(writes: &[Write]) -> Duration {
    let mut successes: Vec<Instant> = writes
        .iter()
        .filter(|write| write.result.is_ok())
        .map(|write| write.ended)
        .collect();
    successes.sort();
    successes
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .max()
        .unwrap_or(Duration::MAX)
}

/// Counts the errors by kind and outcome, for the output of the test.
pub fn error_counts(writes: &[Write]) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for error in writes
        .iter()
        .filter_map(|write| write.result.as_ref().err())
    {
        *counts
            .entry(format!("{:?}/{:?}", error.kind(), error.outcome()))
            .or_default() += 1;
    }
    counts
}

/// Checks that etcd applied each successful write once, each rejected or unsent write never, and each write with an
/// unknown outcome at most once.
pub async fn check_applied_at_most_once(cluster: &Cluster, prefix: &str, writes: &[Write]) {
    let mut applied: HashMap<String, usize> = HashMap::new();
    for change in cluster.history(prefix).await {
        if let Some(value) = change.value {
            *applied
                .entry(String::from_utf8_lossy(&value).into_owned())
                .or_default() += 1;
        }
    }
    for write in writes {
        let times = applied.get(&write.value).copied().unwrap_or(0);
        let valid = match &write.result {
            Ok(()) => times == 1,
            Err(error) => match error.outcome() {
                Outcome::NotSent | Outcome::Rejected => times == 0,
                _ => times <= 1,
            },
        };
        assert!(
            valid,
            "{} was applied {times} times, but the call returned {:?}",
            write.value, write.result
        );
    }
}

#[derive(Debug)]
pub struct FailedRead {
    pub sent: Instant,
    pub ended: Instant,
    pub error: Error,
}

/// Readers of one key.
pub struct Readers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<FailedRead>>>,
}

impl Readers {
    pub fn start(client: &Client, count: usize, key: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..count)
            .map(|_| {
                let (client, stop, key) = (client.clone(), stop.clone(), key.to_owned());
                tokio::spawn(async move {
                    let mut failed = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let sent = Instant::now();
                        if let Err(error) = client.get(&key).await {
                            failed.push(FailedRead {
                                sent,
                                ended: Instant::now(),
                                error,
                            });
                        }
                        tokio::task::yield_now().await;
                    }
                    failed
                })
            })
            .collect();
        Self { stop, tasks }
    }

    /// Stops the readers and returns the errors of all failed reads.
    pub async fn finish(self) -> Vec<Error> {
        let failed = self.finish_timed().await;
        failed.into_iter().map(|read| read.error).collect()
    }

    /// Stops the readers and returns all failed reads with their times.
    pub async fn finish_timed(self) -> Vec<FailedRead> {
        self.stop.store(true, Ordering::Relaxed);
        let mut failed = Vec::new();
        for task in self.tasks {
            failed.extend(task.await.expect("a reader does not panic"));
        }
        failed
    }
}
