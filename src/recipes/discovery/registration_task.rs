//! The task that keeps one instance listed.
//!
//! It puts the key again after the loss of a lease, applies updates, and ends the registration when another process
//! takes the key. At most one read or write of the key is in flight.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_stream::{Stream, StreamExt};

use super::{
    RegistrationEvent,
    instance_key::{InstanceKey, KeyOwner, KeyStatus},
};
use crate::{
    error::Result,
    layers::read_then_watch::{KeysUpdate, ReadThenWatch},
    recipes::session::{Session, SessionEvent},
};

/// Events buffered per reader. A reader that is further behind loses the oldest ones.
const EVENT_BUFFER: usize = 64;

/// A request to replace the value of the instance.
pub(super) struct UpdateInstance {
    pub(super) value: Bytes,
    pub(super) done: oneshot::Sender<Result<()>>,
    /// Set before the value is sent to etcd.
    pub(super) sent: Arc<AtomicBool>,
}

/// A request to unregister: where to send its result.
pub(super) type Unregister = oneshot::Sender<Result<()>>;

#[derive(Debug, Clone)]
pub(super) struct RegistrationState {
    pub(super) lease: Option<i64>,
    /// The last event, once the registration has ended.
    pub(super) ended: Option<RegistrationEvent>,
}

type KeyRequest = Pin<Box<dyn Future<Output = Result<KeyStatus>> + Send>>;

pub(super) struct RegistrationTask {
    key: InstanceKey,
    session: Session,
    value: Bytes,
    /// Whether the key was put with the current lease.
    listed: bool,
    in_flight: Option<KeyRequest>,
    /// The update that the request in flight writes.
    update: Option<UpdateInstance>,
    events: broadcast::Sender<RegistrationEvent>,
    state: watch::Sender<RegistrationState>,
}

impl RegistrationTask {
    /// Creates the task for an instance whose key was put with this value.
    pub(super) fn new(session: Session, key: InstanceKey, value: Bytes) -> Self {
        let lease = key.lease();
        Self {
            key,
            session,
            value,
            listed: true,
            in_flight: None,
            update: None,
            events: broadcast::Sender::new(EVENT_BUFFER),
            state: watch::Sender::new(RegistrationState {
                lease: Some(lease),
                ended: None,
            }),
        }
    }

    pub(super) fn events(&self) -> broadcast::Receiver<RegistrationEvent> {
        self.events.subscribe()
    }

    pub(super) fn state(&self) -> watch::Receiver<RegistrationState> {
        self.state.subscribe()
    }

    /// Runs until the registration has ended, or the sender of `end` is used or dropped.
    pub(super) async fn run(
        mut self,
        mut session_events: impl Stream<Item = SessionEvent> + Unpin,
        mut updates: mpsc::Receiver<UpdateInstance>,
        mut end: oneshot::Receiver<Unregister>,
    ) {
        let (client, key) = (self.key.client().clone(), self.key.key().clone());
        let mut key_updates = Some(ReadThenWatch::key(client, key));
        loop {
            let ready = self.listed && self.in_flight.is_none();
            tokio::select! {
                biased;
                unregister = &mut end => {
                    if let Ok(done) = unregister {
                        let _ = done.send(self.session.close().await);
                    }
                    return;
                }
                // Before updates of the key, which follow from the loss of a lease.
                Some(event) = session_events.next() => self.on_session_event(&event),
                status = completed(&mut self.in_flight) => self.on_key_status(status),
                Some(update) = updates.recv(), if ready => self.start_update(update),
                update = next_key_update(&mut key_updates), if ready => match update {
                    Ok(update) => self.on_key_update(&update),
                    // Without permission to read the key, a takeover goes unnoticed.
                    Err(error) => {
                        tracing::debug!(%error, "key of a registered instance cannot be watched");
                        key_updates = None;
                    }
                },
            }
            if self.state.borrow().ended.is_some() {
                return;
            }
        }
    }

    fn on_session_event(&mut self, event: &SessionEvent) {
        match *event {
            SessionEvent::AtRisk { deadline } => {
                self.publish(RegistrationEvent::AtRisk { deadline });
            }
            SessionEvent::Recovered { deadline } => {
                self.publish(RegistrationEvent::Recovered { deadline });
            }
            SessionEvent::Healing(reason) => {
                self.listed = false;
                self.in_flight = None;
                self.publish(RegistrationEvent::Lapsed(reason));
            }
            SessionEvent::Healed { lease, .. } => {
                self.listed = false;
                self.key.set_lease(lease);
                let update = self.update.as_ref();
                let value = update.map_or(&self.value, |update| &update.value);
                let restore = self.key.clone().write_or_check(Some(value.clone()));
                self.in_flight = Some(Box::pin(restore));
            }
            SessionEvent::Lost(reason) => self.publish(RegistrationEvent::Ended(reason)),
            // The registration puts its key itself: the session has none.
            SessionEvent::KeysNotRestored(_) | SessionEvent::KeysRestored { .. } => {}
        }
    }

    fn start_update(&mut self, update: UpdateInstance) {
        // In this order: the caller drops its end of `done` before it reads `sent`.
        update.sent.store(true, Ordering::SeqCst);
        if update.done.is_closed() {
            return;
        }
        let (key, value) = (self.key.clone(), update.value.clone());
        self.update = Some(update);
        self.in_flight = Some(Box::pin(async move { key.write(&value, false).await }));
    }

    /// Reads the key again if the update shows another owner: the update may be old, for example from a process that
    /// had the key during an outage.
    fn on_key_update(&mut self, update: &KeysUpdate) {
        let latest = match update {
            KeysUpdate::Snapshot(found) => found.first(),
            KeysUpdate::Events(events) => events
                .last()
                .filter(|last| last.is_put())
                .and_then(|last| last.kv.as_ref()),
        };
        if !matches!(self.key.owner(latest), KeyOwner::ThisRegistration(_)) {
            self.in_flight = Some(Box::pin(self.key.clone().write_or_check(None)));
        }
    }

    fn on_key_status(&mut self, status: Result<KeyStatus>) {
        self.in_flight = None;
        match status {
            Ok(KeyStatus::Listed { revision }) => {
                self.key.set_revision(revision);
                if let Some(update) = self.update.take() {
                    self.value = update.value;
                    let _ = update.done.send(Ok(()));
                }
                if !std::mem::replace(&mut self.listed, true) {
                    let lease = self.key.lease();
                    self.state.send_modify(|state| state.lease = Some(lease));
                    self.publish(RegistrationEvent::Restored { lease });
                }
            }
            Ok(KeyStatus::Taken) => self.publish(RegistrationEvent::Taken),
            // The session reports the loss as well, and heals.
            Ok(KeyStatus::LeaseLost) => self.listed = false,
            Err(error) => {
                if let Some(update) = self.update.take() {
                    let _ = update.done.send(Err(error));
                }
            }
        }
    }

    fn publish(&self, event: RegistrationEvent) {
        if matches!(
            event,
            RegistrationEvent::Taken | RegistrationEvent::Ended(_)
        ) {
            self.state.send_replace(RegistrationState {
                lease: None,
                ended: Some(event.clone()),
            });
        }
        // An error means that there is no reader.
        let _ = self.events.send(event);
    }
}

async fn completed(request: &mut Option<KeyRequest>) -> Result<KeyStatus> {
    match request {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

async fn next_key_update(key_updates: &mut Option<ReadThenWatch>) -> Result<KeysUpdate> {
    match key_updates {
        Some(key_updates) => key_updates.next().await,
        None => std::future::pending().await,
    }
}
