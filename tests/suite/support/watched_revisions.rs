//! Checks that a watch delivers every revision of a prefix exactly once, in order.

use actix_etcd::{Client, WatchEvent};
use testbed::Cluster;
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use crate::support::wait::TEST_TIMEOUT;

/// A watch of a prefix that records the revision of each batch of events.
pub struct WatchedRevisions {
    prefix: String,
    start: i64,
    last: watch::Sender<i64>,
    task: JoinHandle<Vec<i64>>,
}

impl WatchedRevisions {
    pub async fn start(etcd: &Client, prefix: &str) -> Self {
        let mut watch = etcd.watch(prefix).prefix().await.unwrap();
        let start = watch.revision();
        let (last, mut last_revision) = watch::channel(i64::MAX);
        let task = tokio::spawn(async move {
            let mut revisions = Vec::new();
            while revisions.last().copied().unwrap_or(0) < *last_revision.borrow() {
                let item = tokio::select! {
                    item = watch.next() => item.expect("the watch has not ended"),
                    _ = last_revision.changed() => continue,
                };
                match item {
                    WatchEvent::Events(events) => revisions.push(events.revision()),
                    WatchEvent::Ended(reason) => panic!("the watch ended: {reason}"),
                    _ => {}
                }
            }
            revisions
        });
        Self {
            prefix: prefix.to_owned(),
            start,
            last,
            task,
        }
    }

    /// Waits until the watch has delivered the last change in the history, and compares all revisions with it. All
    /// writers must have finished.
    pub async fn check(self, cluster: &Cluster) {
        let expected: Vec<i64> = cluster
            .history(&self.prefix)
            .await
            .into_iter()
            .map(|change| change.revision)
            .filter(|revision| *revision > self.start)
            .collect();
        self.last
            .send_replace(expected.last().copied().unwrap_or(0));
        let delivered = timeout(TEST_TIMEOUT, self.task).await;
        let delivered = delivered.expect("the watch delivers the last change in time");
        assert_eq!(delivered.unwrap(), expected);
    }
}
