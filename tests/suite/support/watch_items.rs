//! Reading the items of a watch, with a timeout.

use std::time::Duration;

use actix_etcd::{Watch, WatchEvent, watch::WatchEnd};
use tokio::time::timeout;

/// Limit for one step of a watch, long enough for a busy machine.
pub const WATCH_TIMEOUT: Duration = Duration::from_secs(20);

pub async fn next_item(watch: &mut Watch) -> WatchEvent {
    timeout(WATCH_TIMEOUT, watch.next())
        .await
        .expect("no item within the timeout")
        .expect("the watch has ended")
}

/// Returns the next revision with events, and the keys changed in it. Skips all other items.
pub async fn next_change(watch: &mut Watch) -> (i64, Vec<String>) {
    loop {
        match next_item(watch).await {
            WatchEvent::Events(events) => {
                let key = |event: &actix_etcd::proto::Event| {
                    String::from_utf8_lossy(event.key()).into_owned()
                };
                return (events.revision(), events.iter().map(key).collect());
            }
            WatchEvent::Ended(reason) => panic!("the watch ended: {reason}"),
            _ => {}
        }
    }
}

/// Reads all items and returns the reason in the last one. Panics if an item follows it.
pub async fn read_to_end(watch: &mut Watch) -> WatchEnd {
    let mut end = None;
    while let Some(item) = timeout(WATCH_TIMEOUT, watch.next())
        .await
        .expect("no end within the timeout")
    {
        assert!(end.is_none(), "{item:?} after the end");
        if let WatchEvent::Ended(reason) = item {
            end = Some(reason);
        }
    }
    end.expect("the watch ended without a reason")
}
