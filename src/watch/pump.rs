//! Hands the items of a watch to an actor, one at a time.

use std::time::Duration;

use actix::{Message, Recipient};
use tokio::time::timeout;

use crate::api::watch::{Watch, WatchItem};

/// How often an actor that gets nothing is looked at: it may have ended meanwhile.
const LOOK: Duration = Duration::from_secs(1);

/// Deliver a watch to an actor. Told to the hub, which has a thread for it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Pump {
    pub(crate) watch: Watch,
    pub(crate) recipient: Recipient<WatchItem>,
}

/// Sends the next item when the last was handled, so a slow actor makes the watch lag and nothing grows. Ends with
/// the watch or with the actor; an actor that a supervisor restarts after a panic gets the next item.
pub(crate) async fn pump(mut watch: Watch, recipient: Recipient<WatchItem>) {
    while recipient.connected() {
        match timeout(LOOK, watch.next()).await {
            // Whether it was lost with the actor or only with a panic is seen next.
            Ok(Some(item)) => drop(recipient.send(item).await),
            Ok(None) => return,
            Err(_) => {}
        }
    }
}
