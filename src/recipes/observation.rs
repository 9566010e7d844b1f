//! Delivers what happens to an actor, one message at a time.

use actix::{Message, Recipient};
use tokio::sync::oneshot;
use tokio_stream::{Stream, StreamExt};

use crate::client::Client;

/// An actor is told while this is held.
#[derive(Debug)]
#[must_use = "nothing is told any more when this is dropped"]
pub struct Observation {
    end: oneshot::Sender<()>,
}

impl Observation {
    /// Lets it go on until its actor or the client ends.
    pub fn detach(self) {
        // Where it has ended already, there is nothing to detach.
        let _ = self.end.send(());
    }
}

/// Sends the next item when the last was handled, so that a slow actor is not buried. Ends with the items or the actor;
/// an actor that a supervisor restarts after a panic gets the next item.
pub(super) fn deliver<M>(
    client: &Client,
    mut items: impl Stream<Item = M> + Send + Unpin + 'static,
    recipient: Recipient<M>,
) -> Observation
where
    M: Message<Result = ()> + Send + 'static,
{
    let (end, ended) = oneshot::channel();
    let pump = async move {
        while let Some(item) = items.next().await {
            if recipient.send(item).await.is_err() && !recipient.connected() {
                return;
            }
        }
    };
    let dropped = async move {
        // Something was sent: it was detached.
        if ended.await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    client.run(move || {
        actix_rt::spawn(async move {
            tokio::select! {
                () = dropped => {}
                () = pump => {}
            }
        });
    });
    Observation { end }
}
