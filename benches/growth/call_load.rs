//! Sends calls, holds calls without a response, and holds idle clients.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use actix_etcd::Client;
use serde_json::Value;

use crate::{
    client_process::builder,
    usage::{Usage, figures, idle_cores},
};

const WARM_UP: Duration = Duration::from_millis(200);
const MEASURED: Duration = Duration::from_secs(1);
/// Time after which a client is connected to all endpoints, and calls are sent.
const SETTLE: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_secs(2);

/// Sends gets from `count` callers.
pub async fn call(count: usize, endpoints: &[&str]) -> Value {
    let etcd = builder(endpoints).connect().await.expect("connect");
    tokio::time::sleep(SETTLE).await;
    let begin = Instant::now() + WARM_UP;
    let end = begin + MEASURED;
    let calls = Rc::new(Cell::new(0_u32));
    for _ in 0..count {
        let (etcd, calls) = (etcd.clone(), calls.clone());
        actix::spawn(async move {
            while Instant::now() < end {
                etcd.get("bench/key").await.expect("get");
                calls.set(calls.get() + 1);
            }
        });
    }
    tokio::time::sleep_until(begin.into()).await;
    let (before, first) = (Usage::now(), calls.get());
    tokio::time::sleep_until(end.into()).await;
    let (after, last) = (Usage::now(), calls.get());
    let calls = f64::from(last - first);
    figures(&[
        ("cpu_us", after.micros_since(&before, calls)),
        ("calls_per_s", calls / MEASURED.as_secs_f64()),
    ])
}

/// Holds `count` calls that never get a response.
pub async fn hold_calls(count: usize, endpoints: &[&str]) -> Value {
    let etcd = builder(endpoints)
        .request_timeout(Duration::from_secs(60))
        .max_in_flight(count + 1)
        .hedging(false)
        .connect()
        .await
        .expect("connect");
    let before = Usage::now();
    for _ in 0..count {
        let etcd = etcd.clone();
        tokio::spawn(async move { etcd.get("bench/key").await });
    }
    tokio::time::sleep(SETTLE).await;
    let after = Usage::now();
    figures(&[("bytes", after.bytes_since(&before, count as f64))])
}

/// Holds `count` clients that are connected to all endpoints and do nothing.
pub async fn hold_clients(count: usize, endpoints: &[&str]) -> Value {
    // The first client also initializes what all share.
    let _first = connect(endpoints).await;
    let before = Usage::now();
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        clients.push(connect(endpoints).await);
    }
    tokio::time::sleep(SETTLE).await;
    let connected = Usage::now();
    let cores = idle_cores(IDLE).await;
    let units = count as f64;
    figures(&[
        ("bytes", Usage::now().bytes_since(&before, units)),
        ("cpu_us", connected.micros_since(&before, units)),
        ("idle_cores", cores / units),
    ])
}

async fn connect(endpoints: &[&str]) -> Client {
    let etcd = builder(endpoints).connect().await.expect("connect");
    etcd.get("bench/key").await.expect("get");
    etcd
}
