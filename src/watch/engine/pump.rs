//! A watch that is delivered to an actor.

use actix::{Message, Recipient};

use crate::watch::{Watch, WatchEvent};

/// Deliver a watch to an actor, one item at a time: a slow actor makes the watch lag, and nothing grows. Told to the hub,
/// which has a thread for it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Pump {
    pub(crate) watch: Watch,
    pub(crate) recipient: Recipient<WatchEvent>,
}
