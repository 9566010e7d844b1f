//! The public handle of a registered instance.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use actix::{Message, Recipient};
use actix_rt::Arbiter;
use bytes::Bytes;
use serde_json::Value;
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    time::timeout_at,
};
use tokio_stream::{Stream, StreamExt, wrappers::BroadcastStream};

use super::{
    Subscription,
    instance::encode,
    instance_key::InstanceKey,
    registration_task::{RegistrationState, RegistrationTask, Unregister, UpdateInstance},
};
use crate::{
    call::deadline_in,
    client::{Client, subscription::subscribe},
    error::{Error, ErrorKind, Outcome, Result},
    lease::LeaseLost,
    recipes::session::{Session, session_lost_if_no_lease},
};

/// A change of the state of a registration.
#[derive(Debug, Clone, PartialEq, Eq, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum RegistrationEvent {
    /// The lease was not renewed before its deadline. The instance may no longer be listed.
    AtRisk {
        /// The deadline that has passed.
        deadline: Instant,
    },
    /// The lease was renewed after it was at risk: the instance is listed.
    Recovered {
        /// The new deadline.
        deadline: Instant,
    },
    /// The lease was lost, for this reason. The instance is not listed and is being registered again.
    Lapsed(LeaseLost),
    /// The instance is listed again.
    Restored {
        /// The lease that its key is bound to now.
        lease: i64,
    },
    /// Another process has registered under the key, or the key was deleted. This is the last event.
    Taken,
    /// The registration ended for this reason. This is the last event.
    Ended(LeaseLost),
}

/// A registered instance. Dropping it unregisters the instance in the background.
#[must_use = "dropping the registration unregisters the instance"]
pub struct Registration {
    key: Bytes,
    /// Template for new receivers, never read itself.
    events: broadcast::Receiver<RegistrationEvent>,
    state: watch::Receiver<RegistrationState>,
    updates: mpsc::Sender<UpdateInstance>,
    end: oneshot::Sender<Unregister>,
    client: Client,
}

impl Registration {
    /// Puts the key and starts the task that keeps it listed. If this fails, dropping the session deletes the key.
    pub(super) async fn start(
        client: Client,
        session: Session,
        key: Bytes,
        value: Bytes,
    ) -> Result<Self> {
        let session_events = session.events();
        let lease = session.lease().ok_or_else(not_registered)?;
        let mut instance_key = InstanceKey::new(session.client().clone(), key.clone(), lease);
        let first_put = instance_key.create(&value).await;
        first_put.map_err(session_lost_if_no_lease)?;
        let task = RegistrationTask::new(session, instance_key, value);
        let (updates, received_updates) = mpsc::channel(1);
        let (end, ended) = oneshot::channel();
        let registration = Self {
            key,
            events: task.events(),
            state: task.state(),
            updates,
            end,
            client: client.clone(),
        };
        let started = client.run(move || {
            actix_rt::spawn(task.run(session_events, received_updates, ended));
        });
        if !started {
            return Err(Error::shut_down());
        }
        Ok(registration)
    }

    /// Returns the key of the instance.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Returns the lease that the key is bound to. It changes when the instance is restored, and is `None` once the
    /// registration has ended.
    pub fn lease(&self) -> Option<i64> {
        self.state.borrow().lease
    }

    /// Replaces the address and the metadata, under the same key. Waits while the instance is being registered again,
    /// for at most the client's `request_timeout`. Fails with [`ErrorKind::DeadlineExceeded`] after that time: the outcome
    /// is [`Outcome::NotSent`] if the update will not be applied, and [`Outcome::Unknown`] if it may be. Fails with
    /// [`ErrorKind::SessionLost`] once the registration has ended: the key of another process is never overwritten.
    pub async fn update(&self, addr: &str, metadata: impl Into<Value>) -> Result<()> {
        if addr.is_empty() {
            return Err(Error::invalid("the address of the instance is empty"));
        }
        let value = encode(addr, &metadata.into()).into();
        let (done, result) = oneshot::channel();
        let sent = Arc::new(AtomicBool::new(false));
        let update = UpdateInstance {
            value,
            done,
            sent: sent.clone(),
        };
        let updated = Box::pin(async {
            let queued = self.updates.send(update).await;
            queued.map_err(|_| not_registered())?;
            result.await.map_err(|_| not_registered())?
        });
        let updated = timeout_at(deadline_in(self.client.request_timeout()), updated).await;
        // The request is dropped here. An update that the task has not marked as sent is not sent any more.
        updated.unwrap_or_else(|_| Err(not_updated(sent.load(Ordering::SeqCst))))
    }

    /// Returns the events from now on, or only the last event if the registration has ended. Ends after the last event.
    /// A reader that is more than 64 events behind misses the oldest.
    pub fn events(&self) -> impl Stream<Item = RegistrationEvent> + Send + Unpin + use<> {
        let later = BroadcastStream::new(self.events.resubscribe()).filter_map(Result::ok);
        // Read after subscribing, so that an end in between is not missed.
        let last = self.state.borrow().ended.clone();
        let later_count = if last.is_some() { 0 } else { usize::MAX };
        tokio_stream::iter(last).chain(later.take(later_count))
    }

    /// Sends the events to an actor. The next event is sent when the actor has handled the last one. The delivery ends
    /// when the actor stops, the registration ends, or the subscription is dropped.
    pub fn deliver_to(&self, recipient: Recipient<RegistrationEvent>) -> Subscription {
        let if_shut_down = RegistrationEvent::Ended(LeaseLost::Shutdown);
        subscribe(&self.client, self.events(), recipient, Some(if_shut_down))
    }

    /// Removes the instance from the list and waits for the response. Fails if its lease could not be revoked; the
    /// instance is then listed until its TTL ends.
    pub async fn unregister(self) -> Result<()> {
        let (done, result) = oneshot::channel();
        // An error means that the registration has already ended.
        if self.end.send(done).is_err() {
            return Ok(());
        }
        result.await.map_err(|_| Error::shut_down())?
    }

    /// Keeps the instance registered without the handle, until the client is shut down or the current actix arbiter
    /// ends. Without an arbiter, as on plain tokio: until the client is shut down.
    pub fn detach(self) {
        let client = self.client.clone();
        let hold_until_ended = async move {
            let mut state = self.state.clone();
            // An error means that the client was shut down.
            let _ = state.wait_for(|state| state.ended.is_some()).await;
            drop(self);
        };
        // Not on the client's thread: a task there would keep the client alive after the application's system stops.
        match Arbiter::try_current() {
            Some(arbiter) => drop(arbiter.spawn(hold_until_ended)),
            None => drop(client.run(move || drop(actix_rt::spawn(hold_until_ended)))),
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("key", &self.key)
            .field("lease", &self.lease())
            .finish_non_exhaustive()
    }
}

fn not_updated(sent: bool) -> Error {
    let outcome = if sent {
        Outcome::Unknown
    } else {
        Outcome::NotSent
    };
    let reason = "the instance was still being registered again at the deadline of the update";
    Error::new(ErrorKind::DeadlineExceeded, outcome, reason)
}

fn not_registered() -> Error {
    Error::new(
        ErrorKind::SessionLost,
        Outcome::NotSent,
        "the instance is no longer registered",
    )
}
