//! Watches whose events are messages to an actor.

use actix::{Message, Recipient};

use super::{WatchEvent, WatchHandle, WatchRequest, engine::watch_service::WatchClient};
use crate::{
    error::Result,
    request::{EtcdRequest, ResponseFuture},
};

/// Opens a watch and sends its events to an actor, each after the previous one was handled:
/// `etcd.send(watch_keys("config/").prefix().deliver_to(recipient))`. Returns the handle that cancels the watch.
///
/// Sent with `do_send`, the watch runs until the recipient or the client stops.
#[derive(Clone, Message)]
#[rtype(result = "Result<WatchHandle>")]
pub struct SubscribeWatch {
    pub(super) watch: WatchRequest,
    pub(super) recipient: Recipient<WatchEvent>,
}

impl<C: WatchClient> EtcdRequest<C> for SubscribeWatch {
    type Response = WatchHandle;

    fn name(&self) -> &'static str {
        "SubscribeWatch"
    }

    fn send_with(self, client: &C) -> ResponseFuture<WatchHandle> {
        Box::pin(self.watch.on(client).deliver_to(self.recipient))
    }

    fn discard(self, handle: WatchHandle) {
        handle.detach();
    }
}
