//! One logical watch on record: what it told, against what truly happened.

use std::time::Duration;

use actix_etcd::{Client, Watch, WatchItem, proto};
use testbed::{
    Cluster,
    validators::{self, EventKind, History, KeyEvent, Previous, Record, Request},
};
use tokio::{task::JoinHandle, time::timeout};

/// How long a watch may need to show the last write once everything is well again.
const PATIENCE: Duration = Duration::from_secs(30);
/// After how many items progress is asked for once more.
const ASKS: usize = 50;
/// How often a server tells a recorded watch its progress: the shortest that etcd takes.
pub const PROGRESS: Duration = Duration::from_millis(100);

/// A watch being read by a task, until it has shown a revision.
pub struct Recorded {
    name: String,
    request: Request,
    recorder: JoinHandle<(Watch, Vec<Record>)>,
    until: tokio::sync::watch::Sender<i64>,
}

impl Recorded {
    /// Opens the watch this request describes, and reads it.
    pub async fn open(name: &str, etcd: &Client, request: Request) -> Self {
        let mut open = etcd.watch(request.key.clone()).notices().progress_notify();
        if let Some(end) = request.range_end.clone() {
            open = open.range(end);
        }
        if request.prev_kv {
            open = open.prev_kv();
        }
        let open = open.start_revision(request.start_revision);
        let watch = open.await.expect("the watch opens");
        Self::read(name, watch, request)
    }

    /// Reads a watch that fits the request and was just opened.
    pub fn read(name: &str, mut watch: Watch, mut request: Request) -> Self {
        if request.start_revision == 0 {
            // The watch itself says where "now" was: from there on nothing may be missing.
            request.start_revision = watch.revision() + 1;
        }
        let (until, mut wanted) = tokio::sync::watch::channel(i64::MAX);
        let recorder = tokio::spawn(async move {
            let mut records = Vec::new();
            while watch.revision() < *wanted.borrow() {
                let item = tokio::select! {
                    item = watch.next() => item.expect("the watch has not ended"),
                    _ = wanted.changed() => continue,
                };
                records.extend(record(item));
                if records.len() % ASKS == 0 {
                    // Answered or not: that it comes at any time is what counts.
                    tokio::spawn(watch.request_progress());
                }
            }
            let last = *wanted.borrow();
            bookmark(&mut watch, last, &mut records).await;
            (watch, records)
        });
        Self {
            name: name.to_owned(),
            request,
            recorder,
            until,
        }
    }

    /// Waits until the watch has shown that revision, and checks all it has ever shown.
    pub async fn check(self, revision: i64, history: &History) -> Vec<Record> {
        let Self {
            name,
            request,
            recorder,
            until,
        } = self;
        until.send_replace(revision);
        let read = timeout(PATIENCE, recorder).await;
        let read = read.unwrap_or_else(|_| panic!("{name}: revision {revision} never came"));
        let (_watch, records) = read.unwrap_or_else(|why| panic!("{name}: {why}"));
        if let Err(why) = validators::all(&request, &records, history) {
            panic!("{name}: {why}");
        }
        records
    }
}

/// Asks for progress until it is told up to that revision, and reads as far.
pub async fn bookmark(watch: &mut Watch, revision: i64, records: &mut Vec<Record>) {
    let told = |records: &[Record]| matches!(records.last(), Some(Record::Progress(told)) if *told >= revision);
    let mut asking = Box::pin(watch.request_progress());
    let mut answered = 0;
    while !told(records) {
        tokio::select! {
            item = watch.next() => records.extend(record(item.expect("the watch has not ended"))),
            answer = &mut asking, if answered < revision => {
                answered = answer.unwrap_or(0);
                if answered < revision {
                    asking = Box::pin(watch.request_progress());
                }
            }
        }
    }
}

/// How often progress was told before the last time, which was asked for when all was over.
pub fn bookmarks(records: &[Record]) -> usize {
    let told = |record: &&Record| matches!(record, Record::Progress(_));
    records.iter().filter(told).count() - 1
}

/// What an item says, as validators read it; what they have no use for is left out.
pub fn record(item: WatchItem) -> Option<Record> {
    Some(match item {
        WatchItem::Events(events) => Record::Events {
            revision: events.revision(),
            events: events.iter().map(change).collect(),
        },
        WatchItem::Progress(revision) => Record::Progress(revision),
        WatchItem::Disconnected(_) => Record::Disconnected,
        WatchItem::Resumed => Record::Resumed,
        WatchItem::Lagging => Record::Lagging,
        WatchItem::Resynced(resynced) => Record::Resynced(resynced.revision),
        WatchItem::Ended(why) => panic!("the watch ended: {why}"),
        _ => return None,
    })
}

fn change(event: &proto::Event) -> KeyEvent {
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

/// What truly happened, as the cluster itself tells it past all faults.
pub async fn truth(cluster: &Cluster) -> History {
    let changes = cluster.history("").await;
    History::new(changes.into_iter().map(|change| KeyEvent {
        kind: if change.value.is_some() {
            EventKind::Put
        } else {
            EventKind::Delete
        },
        key: change.key,
        value: change.value.unwrap_or_default(),
        create_revision: change.create_revision,
        mod_revision: change.revision,
        version: change.version,
        previous: None,
    }))
}

/// Writes until told to stop: puts, deletes and transactions over a few keys, each value once. Failures are part of it.
pub struct Load(JoinHandle<()>);

impl Load {
    pub fn start(etcd: &Client) -> Self {
        let etcd = etcd.clone();
        Self(tokio::spawn(async move {
            for n in 0_u64.. {
                let key = format!("k/{}", n * 7 % 10);
                let brief = Duration::from_millis(500);
                let _ = match n % 5 {
                    0 => etcd.delete(key).timeout(brief).await.map(drop),
                    1 => {
                        let puts = ["k/0", "k/a", "k/b", "other"]
                            .map(|key| actix_etcd::kv::put(key, n.to_string()));
                        etcd.txn().then(puts).timeout(brief).await.map(drop)
                    }
                    _ => etcd.put(key, n.to_string()).timeout(brief).await.map(drop),
                };
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }))
    }

    /// Ends it with a last write that everybody has to see, and gives its revision.
    pub async fn stop(self, etcd: &Client) -> i64 {
        self.0.abort();
        let _ = self.0.await;
        let last = ["k/0", "k/last"].map(|key| actix_etcd::kv::put(key, "the last"));
        let patient = Duration::from_secs(20);
        loop {
            // Its outcome may be unknown; a second one does no harm.
            if let Ok(done) = etcd.txn().then(last.clone()).timeout(patient).await {
                return done.header.revision;
            }
        }
    }
}
