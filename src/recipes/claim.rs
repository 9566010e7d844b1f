//! A lock or a leadership that is had for an actor, which is told by messages when it has it and when not any more.

use std::ops::Deref;

use actix::{Message, Recipient};
use tokio::sync::oneshot;

use super::{held::Held, tenure::Loss};
use crate::{
    client::Client,
    delivery::gone,
    error::{Error, Result},
};

/// Waits for a lock or a leadership on behalf of an actor, and holds it. Dropped, it is given back in the background.
#[derive(Debug)]
#[must_use = "what is claimed is given back when this is dropped"]
pub struct Claim {
    end: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
}

impl Claim {
    /// Gives it back, or leaves the queue, and waits for it. The actor is told.
    pub async fn release(self) {
        drop(self.end);
        // An error: the client has ended, and its session with it.
        let _ = self.done.await;
    }
}

/// What can be held and left.
pub(super) trait Hold: Deref<Target = Held> + Send + 'static {
    fn leave(self) -> impl Future<Output = Result<()>> + Send;
}

/// What an actor is told, whatever it calls it.
pub(super) enum Told {
    Held(Held),
    Lost(Loss),
    Left,
    Failed(Error),
}

/// Messages are few, and late news of a loss is bad news: they go into the mailbox however full it is.
pub(super) fn claim<G, M>(
    client: &Client,
    wanted: impl Future<Output = Result<G>> + Send + 'static,
    recipient: Recipient<M>,
) -> Claim
where
    G: Hold,
    M: From<Told> + Message<Result = ()> + Send + 'static,
{
    let (end, ended) = oneshot::channel();
    let (done, released) = oneshot::channel();
    // Where the client has ended, nothing is told: the session was lost before.
    client.run(move || {
        actix_rt::spawn(async move {
            if let Some(last) = hold(wanted, ended, &recipient).await {
                recipient.do_send(last.into());
            }
            let _ = done.send(());
        });
    });
    Claim {
        end,
        done: released,
    }
}

/// What the actor is told last; nothing where it has ended itself.
async fn hold<G, M>(
    wanted: impl Future<Output = Result<G>>,
    mut ended: oneshot::Receiver<()>,
    recipient: &Recipient<M>,
) -> Option<Told>
where
    G: Hold,
    M: From<Told> + Message<Result = ()> + Send + 'static,
{
    let guard = tokio::select! {
        biased;
        _ = &mut ended => return Some(Told::Left),
        () = gone(recipient) => return None,
        got = wanted => match got {
            Ok(guard) => guard,
            Err(error) => return Some(Told::Failed(error)),
        },
    };
    recipient.do_send(Told::Held((*guard).clone()).into());
    tokio::select! {
        biased;
        loss = guard.lost() => Some(Told::Lost(loss)),
        () = gone(recipient) => None,
        _ = ended => {
            // It goes on in the background.
            if let Err(error) = guard.leave().await {
                tracing::debug!(%error, "a lock or a leadership was not given back at once");
            }
            Some(Told::Left)
        }
    }
}
