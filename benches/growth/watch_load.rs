//! Holds many watches. The server sends one event on each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::{Actor, Context, Handler, Recipient};
use actix_etcd::{Client, Watch, WatchEvent, watch::WatchHandle};
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    client_process::{Load, builder},
    usage::{Usage, figures, idle_cores},
};

/// Number of watches opened concurrently.
const OPEN_BATCH: usize = 500;
/// Time after which the client has ended all work of opening watches.
const SETTLE: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(4);

pub async fn hold(load: Load, count: usize, endpoints: &[&str]) -> Value {
    let etcd = builder(endpoints).connect().await.expect("connect");
    let received = Arc::new(ReceivedCount::default());
    let counter = EventCounter(received.clone()).start();
    // The first watch also starts a stream, which is not part of the cost per watch.
    let mut first = etcd.watch("key").await.expect("open a watch");
    read_event(&mut first).await;
    let before = Usage::now();
    let mut held = HeldWatches::default();
    let mut opened = 0;
    while opened < count {
        let batch = match load {
            Load::WatchTasksAtOnce => count,
            _ => OPEN_BATCH.min(count - opened),
        };
        match load {
            Load::WatchDeliveries => {
                let recipient = counter.clone().recipient();
                held.deliver(&etcd, batch, &recipient).await;
            }
            Load::Watches => held.open(&etcd, batch, &received).await,
            _ => {
                for _ in 0..batch {
                    tokio::spawn(read_events(etcd.clone(), received.clone()));
                }
            }
        }
        opened += batch;
        received.wait_for(opened).await;
    }
    let units = count as f64;
    let opened = Usage::now();
    tokio::time::sleep(SETTLE).await;
    let cores = idle_cores(IDLE).await;
    figures(&[
        ("bytes", Usage::now().bytes_since(&before, units)),
        ("cpu_us", opened.micros_since(&before, units)),
        ("idle_cores", cores),
    ])
}

/// Watches that no task owns.
#[derive(Default)]
struct HeldWatches {
    watches: Vec<Watch>,
    handles: Vec<WatchHandle>,
}

impl HeldWatches {
    /// Opens watches concurrently and reads the first event of each.
    async fn open(&mut self, etcd: &Client, count: usize, received: &ReceivedCount) {
        let open = |_| tokio::spawn(etcd.watch("key").into_future());
        let opening: Vec<_> = (0..count).map(open).collect();
        for opened in opening {
            let mut watch = opened.await.expect("no panic").expect("open a watch");
            read_event(&mut watch).await;
            received.add();
            self.watches.push(watch);
        }
    }

    /// Opens watches concurrently whose events are delivered to an actor.
    async fn deliver(&mut self, etcd: &Client, count: usize, recipient: &Recipient<WatchEvent>) {
        let deliver = |_| {
            let (etcd, recipient) = (etcd.clone(), recipient.clone());
            tokio::spawn(async move { etcd.watch("key").deliver_to(recipient).await })
        };
        let opening: Vec<_> = (0..count).map(deliver).collect();
        for opened in opening {
            let handle = opened.await.expect("no panic").expect("open a watch");
            self.handles.push(handle);
        }
    }
}

/// What users write: a task that opens a watch and reads its events.
async fn read_events(etcd: Client, received: Arc<ReceivedCount>) {
    let mut watch = etcd.watch("key").await.expect("open a watch");
    while let Some(event) = watch.next().await {
        match event {
            WatchEvent::Events(_) => received.add(),
            WatchEvent::Ended(end) => panic!("{end}"),
            _ => {}
        }
    }
}

async fn read_event(watch: &mut Watch) {
    while !matches!(watch.next().await, Some(WatchEvent::Events(_))) {}
}

/// Number of events received.
#[derive(Default)]
struct ReceivedCount {
    events: AtomicUsize,
    changed: Notify,
}

impl ReceivedCount {
    fn add(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
    }

    async fn wait_for(&self, events: usize) {
        while self.events.load(Ordering::SeqCst) < events {
            self.changed.notified().await;
        }
    }
}

/// Counts the events that are delivered to it.
struct EventCounter(Arc<ReceivedCount>);

impl Actor for EventCounter {
    type Context = Context<Self>;
}

impl Handler<WatchEvent> for EventCounter {
    type Result = ();

    fn handle(&mut self, event: WatchEvent, _: &mut Context<Self>) {
        if matches!(event, WatchEvent::Events(_)) {
            self.0.add();
        }
    }
}
