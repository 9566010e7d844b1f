//! A lock or a leadership that is had for an actor, which is told by messages when it has it and when not any more.

use std::ops::Deref;

use actix::{Message, Recipient};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{held::Ownership, place::Place, queue::Queue, tenure::OwnershipLost};
use crate::{
    error::{Error, Result},
    runtime::delivery::{SendOnDrop, actor_stopped},
};

/// Waits for a lock or a leadership on behalf of an actor, and holds it. Dropped, it is given back in the background.
#[derive(Debug)]
#[must_use = "what is claimed is given back when this is dropped"]
pub struct ClaimHandle {
    end: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
}

impl ClaimHandle {
    /// Gives it back, or leaves the queue, and waits for it. The actor is told.
    pub async fn release(self) {
        drop(self.end);
        // An error: the client has ended, and its session with it.
        let _ = self.done.await;
    }
}

/// What can be held and left.
pub(super) trait Hold: Deref<Target = Ownership> + Send + 'static {
    fn leave(self) -> impl Future<Output = Result<()>> + Send;
}

/// What an actor is told, whatever it calls it.
pub(super) enum Told {
    Held(Ownership),
    Lost(OwnershipLost),
    Left,
    Failed(Error),
}

/// Messages are few, and late news of a loss is bad news: they go into the mailbox however full it is.
pub(super) fn claim<G, M, F>(
    queue: Queue,
    value: Bytes,
    hold: impl FnOnce(Place) -> F + Send + 'static,
    recipient: Recipient<M>,
) -> ClaimHandle
where
    G: Hold,
    M: From<Told> + Message<Result = ()> + Send + 'static,
    F: Future<Output = Result<G>> + Send + 'static,
{
    let (end, mut ended) = oneshot::channel();
    let (done, released) = oneshot::channel();
    let never = Told::Failed(Error::shut_down());
    let unheard = SendOnDrop::new(recipient.clone(), Some(never.into()));
    queue.client.clone().run(move || {
        unheard.disarm();
        actix_rt::spawn(async move {
            let had = tokio::select! {
                biased;
                () = actor_stopped(&recipient) => return,
                had = have(queue, value, hold, &mut ended) => had,
            };
            let last = match had {
                Ok(Some(guard)) => keep(guard, ended, &recipient).await,
                Ok(None) => Some(Told::Left),
                Err(error) => Some(Told::Failed(error)),
            };
            if let Some(last) = last {
                recipient.do_send(last.into());
            }
            let _ = done.send(());
        });
    });
    ClaimHandle {
        end,
        done: released,
    }
}

/// Waits for it; nothing where it is not wanted any more.
async fn have<G, F>(
    queue: Queue,
    value: Bytes,
    hold: impl FnOnce(Place) -> F,
    ended: &mut oneshot::Receiver<()>,
) -> Result<Option<G>>
where
    F: Future<Output = Result<G>>,
{
    match queue.first_unless(value, ended).await? {
        Some(place) => hold(place).await.map(Some),
        None => Ok(None),
    }
}

/// Holds it. Gives what the actor is told last; nothing where it has ended itself.
async fn keep<G, M>(
    guard: G,
    ended: oneshot::Receiver<()>,
    recipient: &Recipient<M>,
) -> Option<Told>
where
    G: Hold,
    M: From<Told> + Message<Result = ()> + Send + 'static,
{
    recipient.do_send(Told::Held((*guard).clone()).into());
    tokio::select! {
        biased;
        loss = guard.lost() => Some(Told::Lost(loss)),
        () = actor_stopped(recipient) => None,
        _ = ended => {
            // It goes on in the background.
            if let Err(error) = guard.leave().await {
                tracing::debug!(%error, "a lock or a leadership was not given back at once");
            }
            Some(Told::Left)
        }
    }
}
