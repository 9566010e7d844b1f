//! Delivers what happens to an actor for as long as a handle is held.

use actix::{Message, Recipient};
use tokio::sync::oneshot;
use tokio_stream::Stream;

use super::session::{Session, SessionEvent};
use crate::{
    client::Client,
    lease::LeaseLost,
    runtime::delivery::{self, SendOnDrop},
};

/// An actor is told while this is held.
#[derive(Debug)]
#[must_use = "nothing is told any more when this is dropped"]
pub struct Subscription {
    end: oneshot::Sender<()>,
}

impl Subscription {
    /// Lets it go on until its actor or the client ends.
    pub fn detach(self) {
        // Where it has ended already, there is nothing to detach.
        let _ = self.end.send(());
    }
}

impl Session {
    /// Sends what happens to it from now on to an actor, the next event when the last was handled, until that actor or
    /// the session ends, or the handle is dropped.
    pub fn deliver_to(&self, recipient: Recipient<SessionEvent>) -> Subscription {
        let last = SessionEvent::Lost(LeaseLost::Shutdown);
        deliver(self.client(), self.events(), recipient, Some(last))
    }
}

/// On the client's thread, the next item when the last was handled. Where that thread has ended, the actor is told so
/// with the last word given.
pub(super) fn deliver<M>(
    client: &Client,
    items: impl Stream<Item = M> + Send + Unpin + 'static,
    recipient: Recipient<M>,
    last: Option<M>,
) -> Subscription
where
    M: Message<Result = ()> + Send + 'static,
{
    let (end, ended) = oneshot::channel();
    let dropped = async move {
        // Something was sent: it was detached.
        if ended.await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let unheard = SendOnDrop::new(recipient.clone(), last);
    client.run(move || {
        unheard.disarm();
        actix_rt::spawn(async move {
            tokio::select! {
                () = dropped => {}
                () = delivery::deliver(items, recipient) => {}
            }
        });
    });
    Subscription { end }
}
