//! A request to wait until a barrier is not held.

use std::{future::IntoFuture, time::Duration};

use actix::{Message, Recipient};
use bytes::Bytes;
use tokio_stream::StreamExt;

use super::{Subscription, check_name};
use crate::{
    client::{Client, subscription::subscribe_to_end},
    error::{Error, Result},
    layers::read_then_watch::{KeysUpdate, ReadThenWatch},
    recipes::lock_queue::acquired_within,
    request::ResponseFuture,
};

/// A request to wait until a barrier is not held, made by [`Barrier::wait`](super::Barrier::wait). Await it, or call
/// [`deliver_to`](Self::deliver_to) to wait on behalf of an actor.
///
/// Returns at once if the barrier is not held. The wait continues through outages, compactions and a restore of the
/// cluster; it ends if the barrier was released meanwhile, also if it is held again. Dropping the future ends the wait.
/// Fails when the client is shut down, with
/// [`ErrorKind::PermissionDenied`](crate::ErrorKind::PermissionDenied) if the user may not read the key, and with
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty.
#[derive(Debug, Clone)]
#[must_use = "the wait begins when this is awaited or delivered to an actor"]
pub struct WaitBarrier {
    client: Client,
    key: Bytes,
}

impl WaitBarrier {
    pub(super) fn new(client: &Client, key: &Bytes) -> Self {
        Self {
            client: client.clone(),
            key: key.clone(),
        }
    }

    /// Waits for at most `timeout`. Fails with
    /// [`ErrorKind::DeadlineExceeded`](crate::ErrorKind::DeadlineExceeded) after it.
    pub async fn within(self, timeout: Duration) -> Result<()> {
        acquired_within(
            timeout,
            "the barrier was not released within the timeout",
            self,
        )
        .await
    }

    /// Waits on behalf of an actor, which receives one event. Dropping the subscription ends the wait.
    pub fn deliver_to(self, recipient: Recipient<BarrierEvent>) -> Subscription {
        let wait = Self {
            client: self.client.for_background(),
            ..self
        };
        let event = async |wait: Self| match wait.until_released().await {
            Ok(()) => BarrierEvent::Released,
            Err(error) => BarrierEvent::Failed(error),
        };
        let events = Box::pin(tokio_stream::once(wait).then(event));
        let if_shut_down = BarrierEvent::Failed(Error::shut_down());
        subscribe_to_end(&self.client, events, recipient, Some(if_shut_down))
    }

    async fn until_released(self) -> Result<()> {
        check_name(&self.key)?;
        let mut updates = ReadThenWatch::key(self.client, self.key);
        let mut held_since = None;
        loop {
            let found = match updates.next().await? {
                KeysUpdate::Snapshot(found) => found.first().map(|kv| kv.create_revision),
                KeysUpdate::Events(events) => {
                    let last_put = events.last().filter(|event| event.is_put());
                    let kv = last_put.and_then(|event| event.kv.as_ref());
                    kv.map(|kv| kv.create_revision)
                }
            };
            if is_released(&mut held_since, found) {
                return Ok(());
            }
        }
    }
}

/// Returns whether the barrier was released since it was held at the revision `held_since`, given the create revision of
/// its key now. After a restore from a backup, the key is older, and the wait continues with it.
fn is_released(held_since: &mut Option<i64>, found: Option<i64>) -> bool {
    let Some(found) = found else {
        return true;
    };
    let before = held_since.replace(found);
    before.is_some_and(|before| found > before)
}

impl IntoFuture for WaitBarrier {
    type Output = Result<()>;
    type IntoFuture = ResponseFuture<()>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.until_released())
    }
}

/// The end of a wait, sent to the actor that waits.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum BarrierEvent {
    /// The barrier is not held, or was released since the wait began.
    Released,
    /// The wait has failed.
    Failed(Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barrier_held_again_was_released() {
        let mut held_since = None;
        assert!(!is_released(&mut held_since, Some(7)));
        // The key was written again, by a hold that detaches it from its first lease.
        assert!(!is_released(&mut held_since, Some(7)));
        assert!(is_released(&mut held_since, Some(9)));
        assert!(is_released(&mut None, None));
    }

    #[test]
    fn barrier_of_restored_cluster_is_still_held() {
        let mut held_since = Some(9);
        assert!(!is_released(&mut held_since, Some(4)));
        assert!(!is_released(&mut held_since, Some(4)));
        assert!(is_released(&mut held_since, Some(5)));
    }
}
