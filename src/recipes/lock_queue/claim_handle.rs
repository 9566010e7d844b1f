//! Waits for a lock, a permit, a round or a leadership, and holds it, on behalf of an actor.

use std::ops::Deref;

use actix::{Message, Recipient};
use tokio::sync::oneshot;

use super::Ownership;
use crate::{
    client::Client,
    error::{Error, Result},
    recipes::ownership_lost::OwnershipLost,
    runtime::delivery::{SendOnDrop, actor_stopped},
};

/// Waits for a lock or a leadership and holds it on behalf of an actor. Dropping it releases the lock, or leaves the
/// queue, in the background.
#[derive(Debug)]
#[must_use = "dropping the claim releases the lock or the leadership"]
pub struct ClaimHandle {
    /// Dropped before the client, whose drop waits until the lock is released. The actor may be blocked by that wait.
    end: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
    /// Keeps the client running.
    _client: Client,
}

impl ClaimHandle {
    /// Releases the lock, or leaves the queue, and waits until that is done. The actor gets its last event.
    pub async fn release(self) {
        drop(self.end);
        // An error means that the client was shut down, which ended the session as well.
        let _ = self.done.await;
    }
}

/// A lock or a leadership that is held.
pub(in crate::recipes) trait ClaimGuard:
    Deref<Target = Ownership> + Send + 'static
{
    /// Deletes the key, and then waits for what else belongs to the release, unless `abandoned` resolves: nobody waits
    /// for it any more.
    fn release(
        self,
        abandoned: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// An event of a claim. Converted to the event type of the lock or the election.
pub(in crate::recipes) enum ClaimEvent {
    Acquired(Ownership),
    Lost(OwnershipLost),
    Released,
    Failed(Error),
}

/// Joins the queue on the client's thread and sends the events to the actor.
///
/// Events are sent even if the mailbox is full: there are at most two, and a late report of a loss would be harmful. A
/// lock that is lost is given up only after the actor has handled the report.
///
/// `acquire` waits for the guard. It returns `None` if the receiver that it gets is notified or closed first. It must
/// hold only clients for background work, so that the claim does not keep the client running without its handle.
pub(in crate::recipes) fn claim<G, M>(
    client: &Client,
    acquire: impl AsyncFnOnce(&mut oneshot::Receiver<()>) -> Result<Option<G>> + Send + 'static,
    recipient: Recipient<M>,
) -> ClaimHandle
where
    G: ClaimGuard,
    M: From<ClaimEvent> + Message<Result = ()> + Send + 'static,
{
    let (end, mut ended) = oneshot::channel();
    let (done, released) = oneshot::channel();
    let if_shut_down = ClaimEvent::Failed(Error::shut_down());
    let final_message = SendOnDrop::new(recipient.clone(), Some(if_shut_down.into()));
    client.run(move || {
        final_message.disarm();
        actix_rt::spawn(async move {
            let acquired = tokio::select! {
                biased;
                () = actor_stopped(&recipient) => return,
                acquired = acquire(&mut ended) => acquired,
            };
            let last_event = match acquired {
                Ok(Some(guard)) => hold(guard, ended, &recipient).await,
                Ok(None) => Some(ClaimEvent::Released),
                Err(error) => Some(ClaimEvent::Failed(error)),
            };
            if let Some(event) = last_event {
                recipient.do_send(event.into());
            }
            let _ = done.send(());
        });
    });
    ClaimHandle {
        end,
        done: released,
        _client: client.clone(),
    }
}

/// Holds the guard until it is lost or the claim ends. Returns the last event, or `None` if the actor has received it or
/// has stopped.
async fn hold<G, M>(
    guard: G,
    mut ended: oneshot::Receiver<()>,
    recipient: &Recipient<M>,
) -> Option<ClaimEvent>
where
    G: ClaimGuard,
    M: From<ClaimEvent> + Message<Result = ()> + Send + 'static,
{
    recipient.do_send(ClaimEvent::Acquired((*guard).clone()).into());
    let loss = tokio::select! {
        biased;
        loss = guard.lost() => loss,
        () = actor_stopped(recipient) => return None,
        _ = &mut ended => {
            if let Err(error) = guard.release(actor_stopped(recipient)).await {
                tracing::debug!(%error, "claim not released yet, retrying in the background");
            }
            return Some(ClaimEvent::Released);
        }
    };
    // The actor may work under the lock until it has handled the loss. Only then the key is deleted.
    let handled = recipient.send(ClaimEvent::Lost(loss).into());
    tokio::select! {
        _ = handled => {}
        () = actor_stopped(recipient) => {}
        _ = ended => {}
    }
    None
}
