//! Thousands of watches lose all connections at once.
//!
//! The watches are held by a process of their own, so that its memory is the client's alone. A connection that breaks
//! again right after it was made is dialled with a pause; what is measured is the reset of a client that has been well.

use std::time::{Duration, Instant};

use actix_etcd::{Client, WatchEvent};
use testbed::Cluster;

use crate::{holder::Holder, program::verdict};

const ROUNDS: usize = 7;
/// How long the client is left alone between two resets.
const WELL: Duration = Duration::from_millis(500);

/// Says whether it holds what is promised.
pub async fn run(count: usize) -> bool {
    let cluster = Cluster::start(3).await;
    let writer = Client::connect(cluster.direct_endpoints())
        .await
        .expect("connects");
    let began = Instant::now();
    let mut holder = Holder::start(&cluster.endpoints(), count);
    let each = holder.next().memory.resident / count as u64;
    println!(
        "{count} watches opened in {:?}, {each} bytes of memory each",
        began.elapsed()
    );
    let mut times = Vec::new();
    let mut each = (0, 0);
    for round in 0..ROUNDS {
        tokio::time::sleep(WELL).await;
        let began = Instant::now();
        let quiet = seen(&writer, &mut holder, began).await.0;
        let reset = Instant::now();
        for member in cluster.members() {
            member.client_link().reset_now();
        }
        let (took, memory) = seen(&writer, &mut holder, reset).await;
        each = (memory.resident / count as u64, memory.peak / count as u64);
        println!(
            "{count} watches, round {round}: a put reaches all in {quiet:?}, after a reset in {took:?}; {} bytes each",
            each.0
        );
        times.push(took);
    }
    drop(holder);
    times.sort_unstable();
    // What every client needs weighs more on few watches: only of many is it said how much each may take.
    let (limit, bytes) = match count {
        ..=1_000 => (Duration::from_millis(150), None),
        _ => (Duration::from_secs(1), Some(4096)),
    };
    let (median, worst) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    let holds = median <= limit && bytes.is_none_or(|bytes| each.0 <= bytes);
    let bytes = match bytes {
        None => "with the connections' own".to_owned(),
        Some(bytes) => format!("must {bytes}"),
    };
    println!(
        "{count} watches resumed: median {median:?} (must {limit:?}), worst {worst:?}; {} bytes each ({bytes}), at \
         most {}: {}",
        each.0,
        each.1,
        verdict(holds),
    );
    alone(&writer).await;
    writer.shutdown().await;
    holds
}

/// One put; how long since then until the last watch has it.
async fn seen(
    writer: &Client,
    holder: &mut Holder,
    since: Instant,
) -> (Duration, crate::process::Memory) {
    let done = writer.put("key", "value").await.expect("puts");
    let told = holder.next();
    assert_eq!(told.revision, done.header.revision, "watches are behind");
    (since.elapsed(), told.memory)
}

/// What of that is etcd's own: it looks at watches that have something to catch up with every 100 ms.
async fn alone(writer: &Client) {
    let mut times = Vec::new();
    for _ in 0..21 {
        let revision = writer.put("key", "value").await.expect("puts");
        let began = Instant::now();
        let open = writer.watch("key").start_revision(revision.header.revision);
        let mut watch = open.await.expect("opens");
        while !matches!(watch.next().await, Some(WatchEvent::Events(_))) {}
        times.push(began.elapsed());
        // So that the next one does not begin at the same point of etcd's turn.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..100))).await;
    }
    times.sort_unstable();
    println!(
        "a single new watch that is one write behind: median {:?}, worst {:?}",
        times[10], times[20]
    );
}
