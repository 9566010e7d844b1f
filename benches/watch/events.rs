//! Events through one watch, from a server that sends as fast as it can.

use std::time::Instant;

use actix_etcd::{Client, WatchItem};
use testbed::{FastServer, WatchPlan};

use crate::process::cpu;

const EVENTS: u64 = 2_000_000;

pub async fn run() {
    for batch in [1, 10, 100] {
        let events = if batch == 1 { EVENTS / 4 } else { EVENTS };
        let server = FastServer::start_with(WatchPlan {
            events,
            batch,
            value: 64,
        });
        let etcd = Client::connect([server.endpoint()])
            .await
            .expect("connects");
        let (began, used) = (Instant::now(), cpu());
        let mut watch = etcd.watch("bench/key").notices().await.expect("opens");
        let mut seen = 0;
        while seen < events {
            match watch.next().await.expect("goes on") {
                WatchItem::Events(events) => seen += events.len() as u64,
                other => panic!("{other:?}"),
            }
        }
        let (took, used) = (began.elapsed(), cpu() - used);
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let events = events as f64;
        println!(
            "batches of {batch}: {:.0} events a second, {:.2} µs of CPU each",
            events / took.as_secs_f64(),
            used.as_secs_f64() * 1e6 / events,
        );
        drop(watch);
        etcd.shutdown().await;
    }
}
