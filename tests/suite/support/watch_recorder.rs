//! Records every item of a watch and validates the record against the history of the cluster.

use std::time::Duration;

use actix_etcd::{Client, Watch, WatchEvent, proto};
use testbed::{
    Cluster,
    validators::{self, EventKind, History, KeyEvent, Previous, Record, Request},
};
use tokio::{task::JoinHandle, time::timeout};

use super::connected_cluster::cluster_key;

/// Time for a watch to reach the last write after all faults have ended.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Number of items after which the recorder requests progress.
const ITEMS_PER_PROGRESS_REQUEST: usize = 50;
/// Interval of progress notifications for recorded watches. The shortest that etcd accepts.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Starts three members that send frequent progress notifications.
pub async fn start_with_progress() -> Cluster {
    let builder = Cluster::builder().members(3);
    let builder = builder.progress_notify_interval(PROGRESS_INTERVAL);
    builder.start().await
}

/// Reads a watch in a task until it has reached a revision.
pub struct WatchRecorder {
    name: String,
    request: Request,
    task: JoinHandle<(Watch, Vec<Record>)>,
    last_revision: tokio::sync::watch::Sender<i64>,
}

impl WatchRecorder {
    /// Opens the watch that `request` describes and records it.
    pub async fn open(name: &str, etcd: &Client, request: Request) -> Self {
        let watch = Self::watch(etcd, &request).await;
        Self::record(name, watch, request)
    }

    /// Like [`WatchRecorder::open`], for a server that does not respond to progress requests: the record ends with the
    /// last event.
    pub async fn open_without_progress_requests(
        name: &str,
        etcd: &Client,
        request: Request,
    ) -> Self {
        let watch = Self::watch(etcd, &request).await;
        Self::record_watch(name, watch, request, false)
    }

    async fn watch(etcd: &Client, request: &Request) -> Watch {
        let mut open = etcd
            .watch(request.key.clone())
            .status_events()
            .progress_notify();
        if let Some(end) = request.range_end.clone() {
            open = open.range(end);
        }
        if request.prev_kv {
            open = open.prev_kv();
        }
        let open = open.start_revision(request.start_revision);
        open.await.expect("the watch opens")
    }

    /// Records a watch that was just opened with the options in `request`.
    pub fn record(name: &str, watch: Watch, request: Request) -> Self {
        Self::record_watch(name, watch, request, true)
    }

    fn record_watch(
        name: &str,
        mut watch: Watch,
        mut request: Request,
        requests_progress: bool,
    ) -> Self {
        if request.start_revision == 0 {
            // Without a start revision, no event after the revision of the opened watch may be missing.
            request.start_revision = watch.revision() + 1;
        }
        let (last_revision, mut last) = tokio::sync::watch::channel(i64::MAX);
        let task = tokio::spawn(async move {
            let mut records = Vec::new();
            while watch.revision() < *last.borrow() {
                let item = tokio::select! {
                    item = watch.next() => item.expect("the watch has not ended"),
                    _ = last.changed() => continue,
                };
                records.extend(to_record(item));
                if requests_progress && records.len() % ITEMS_PER_PROGRESS_REQUEST == 0 {
                    // The request may fail. Validators only check when the progress items arrive.
                    tokio::spawn(watch.request_progress());
                }
            }
            if requests_progress {
                let last = *last.borrow();
                record_progress(&mut watch, last, &mut records).await;
            }
            (watch, records)
        });
        Self {
            name: name.to_owned(),
            request,
            task,
            last_revision,
        }
    }

    /// Waits until the watch has reached `revision`, validates the whole record and returns it.
    pub async fn check(self, revision: i64, history: &History) -> Vec<Record> {
        let Self {
            name,
            request,
            task,
            last_revision,
        } = self;
        last_revision.send_replace(revision);
        let recorded = timeout(TIMEOUT, task).await;
        let recorded = recorded
            .unwrap_or_else(|_| panic!("{name}: did not reach revision {revision} in time"));
        let (_watch, records) = recorded.unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Err(violation) = validators::all(&request, &records, history) {
            panic!("{name}: {violation}");
        }
        records
    }
}

/// Requests progress and records items until the last one is progress to `revision` or later.
pub async fn record_progress(watch: &mut Watch, revision: i64, records: &mut Vec<Record>) {
    let reached = |records: &[Record]| matches!(records.last(), Some(Record::Progress(at)) if *at >= revision);
    let mut request = Box::pin(watch.request_progress());
    let mut progress = 0;
    while !reached(records) {
        tokio::select! {
            item = watch.next() => {
                records.extend(to_record(item.expect("the watch has not ended")));
            }
            response = &mut request, if progress < revision => {
                progress = response.unwrap_or(0);
                if progress < revision {
                    request = Box::pin(watch.request_progress());
                }
            }
        }
    }
}

/// Returns the number of progress items, without one at the end, which [`record_progress`] requested.
pub fn progress_count(records: &[Record]) -> usize {
    let is_progress = |record: &&Record| matches!(record, Record::Progress(_));
    let requested = records.last().filter(is_progress);
    records.iter().filter(is_progress).count() - usize::from(requested.is_some())
}

/// Converts an item for the validators. Returns `None` for items that they do not check.
pub fn to_record(item: WatchEvent) -> Option<Record> {
    Some(match item {
        WatchEvent::Events(events) => Record::Events {
            revision: events.revision(),
            events: events.iter().map(to_key_event).collect(),
        },
        WatchEvent::Progress(revision) => Record::Progress(revision),
        WatchEvent::Disconnected(_) => Record::Disconnected,
        WatchEvent::Resumed => Record::Resumed,
        WatchEvent::Paused => Record::Paused,
        WatchEvent::Resynced(resynced) => Record::Resynced(resynced.revision),
        WatchEvent::Ended(reason) => panic!("the watch ended: {reason}"),
        _ => return None,
    })
}

fn to_key_event(event: &proto::Event) -> KeyEvent {
    let kv = event.kv.clone().unwrap_or_default();
    KeyEvent {
        kind: if event.is_put() {
            EventKind::Put
        } else {
            EventKind::Delete
        },
        key: kv.key.to_vec(),
        value: kv.value.to_vec(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        previous: event.prev_kv.as_ref().map(|before| Previous {
            value: before.value.to_vec(),
            mod_revision: before.mod_revision,
        }),
    }
}

/// Reads the full history from the cluster, bypassing the fault proxies.
pub async fn actual_history(cluster: &Cluster) -> History {
    let namespace = cluster_key("");
    let changes = cluster.history(&namespace).await;
    History::new(changes.into_iter().map(|change| KeyEvent {
        kind: if change.value.is_some() {
            EventKind::Put
        } else {
            EventKind::Delete
        },
        key: change.key[namespace.len()..].to_vec(),
        value: change.value.unwrap_or_default(),
        create_revision: change.create_revision,
        mod_revision: change.revision,
        version: change.version,
        previous: None,
    }))
}
