//! Writes at fixed intervals on one member, and a plain watch there that shows the lateness of the machine.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use actix_etcd::{Client, WatchEvent};
use tokio::task::JoinHandle;

const WRITE_INTERVAL: Duration = Duration::from_millis(10);

/// Times in microseconds since 1970, by revision.
pub type Times = HashMap<i64, u128>;

/// Writes until stopped.
pub struct SteadyWriter {
    client: Client,
    written: Arc<Mutex<Times>>,
    control: Arc<Mutex<Times>>,
    tasks: [JoinHandle<()>; 2],
}

/// The writes during one fault.
pub struct WrittenWindow {
    /// Times of the responses to the puts.
    pub written: Times,
    /// Times of the events at the control.
    pub control: Times,
}

pub fn now_micros() -> u128 {
    let elapsed = SystemTime::UNIX_EPOCH.elapsed();
    elapsed.expect("the clock is after 1970").as_micros()
}

fn record(times: &Mutex<Times>, revision: i64) {
    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
    times.insert(revision, now_micros());
}

impl SteadyWriter {
    pub async fn start(endpoint: &str) -> Self {
        let client = Client::connect([endpoint]).await.expect("connect");
        let open = client.watch("lateness/").prefix();
        let mut watch = open.await.expect("open a watch");
        let (written, control) = (
            Arc::<Mutex<Times>>::default(),
            Arc::<Mutex<Times>>::default(),
        );
        let received = control.clone();
        let reader = tokio::spawn(async move {
            while let Some(item) = watch.next().await {
                if let WatchEvent::Events(events) = item {
                    record(&received, events.revision());
                }
            }
        });
        let (etcd, responses) = (client.clone(), written.clone());
        let writer = tokio::spawn(async move {
            let mut interval = tokio::time::interval(WRITE_INTERVAL);
            loop {
                interval.tick().await;
                if let Ok(response) = etcd.put("lateness/key", "a value of a usual size").await {
                    record(&responses, response.header.revision);
                }
            }
        });
        Self {
            client,
            written,
            control,
            tasks: [writer, reader],
        }
    }

    /// Stops the writes, waits until their events have arrived at the clients, and returns the times.
    pub async fn stop(self, wait: Duration) -> WrittenWindow {
        let [writer, reader] = self.tasks;
        writer.abort();
        tokio::time::sleep(wait).await;
        reader.abort();
        self.client.shutdown().await;
        let take = |times: &Mutex<Times>| {
            std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner))
        };
        WrittenWindow {
            written: take(&self.written),
            control: take(&self.control),
        }
    }
}
