//! A request to push an item.

use std::time::Duration;

use bytes::Bytes;

use super::queue_keys::QueueKeys;
use crate::{
    error::Result,
    layers::{
        conditional_write::{CreateOutcome, create},
        exactly_once::MarkingClient,
    },
    request::macros::request,
};

/// A request to push an item to a queue, made by [`Queue::push`](super::Queue::push). Without a client (`PushItem<()>`),
/// it is a message to the actor [`Etcd`](crate::Etcd).
///
/// The item is pushed [exactly once](crate::layers::exactly_once), or surely not. If the future is dropped, the
/// item may or may not be pushed, but not later.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct PushItem<C = ()> {
    name: Bytes,
    value: Bytes,
    priority: Option<u16>,
    timeout: Option<Duration>,
    client: C,
}

/// An item that was pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushedItem {
    /// The key of the item. Deleting it withdraws the item.
    pub key: Bytes,
    /// The revision at which it was pushed: the create revision of the key.
    pub revision: i64,
}

request!(PushItem { name, value, priority } -> PushedItem, MarkingClient);

impl<C> PushItem<C> {
    pub(super) fn new(name: Bytes, value: Bytes, client: C) -> Self {
        Self {
            name,
            value,
            priority: None,
            timeout: None,
            client,
        }
    }

    /// Sets the priority, for takers that take [by priority](super::Queue::by_priority): the smallest first. Give all
    /// items of such a queue one: items without a priority come last if few items are ready, and otherwise at an
    /// undefined place. Default: no priority.
    pub fn priority(mut self, priority: u16) -> Self {
        self.priority = Some(priority);
        self
    }
}

impl PushItem {
    async fn perform(self, client: &impl MarkingClient, timeout: Duration) -> Result<PushedItem> {
        let keys = QueueKeys::new(&self.name)?;
        loop {
            let key = keys.new_item(self.priority);
            let created = create(&key, &self.value).timeout(timeout).on(client);
            if let CreateOutcome::Created { revision } = created.await? {
                return Ok(PushedItem { key, revision });
            }
        }
    }
}
