//! Hands the items of a watch to an actor, one at a time.

use actix::{Message, Recipient};

use crate::api::watch::{Watch, WatchItem};

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
    while let Some(item) = watch.next().await {
        if recipient.send(item).await.is_err() && !recipient.connected() {
            return;
        }
    }
}
