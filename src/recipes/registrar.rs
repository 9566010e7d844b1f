//! Keeps an instance listed: puts its key again when its lease was lost, and notices who takes it away.
//!
//! The key is ours as long as it is bound to a lease of ours. Everything that is written after the first put is written
//! only then, or where there is no such key, so that a newer instance is never overwritten.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_stream::{Stream, StreamExt};

use super::{
    follow::{Follow, Seen},
    held::PAUSE,
    queue::passes,
    registration::RegistrationEvent,
    session::{Session, SessionEvent},
};
use crate::{
    client::Client,
    error::{ErrorKind, Result},
    kv::{Compare, KeyValue, OpResponse, get, put},
};

/// The longest pause between two attempts to list an instance again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// More than can be there at once: a lease is granted only when the one before is lost.
const LEASES_KEPT: usize = 8;
/// A reader that is further behind loses the oldest events.
const EVENTS_KEPT: usize = 64;

/// Say this instead of what is said so far.
pub(super) struct Update {
    pub(super) value: Bytes,
    pub(super) done: oneshot::Sender<Result<()>>,
}

/// Where the end of an instance is told when it was asked for.
pub(super) type Unregister = oneshot::Sender<Result<()>>;

/// What is known of it.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) lease: Option<i64>,
    /// What was told last, if nothing follows it.
    pub(super) ended: Option<RegistrationEvent>,
}

/// What came of a look at the key, or of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It is there, and ours.
    Ours,
    /// Somebody else has put it or deleted it.
    Taken,
    /// Our lease is gone, and the key with it.
    Lapsed,
}

/// Whose a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    /// We put it at that revision.
    Us(i64),
    SomebodyElse,
}

fn owner(found: Option<&KeyValue>, leases: &[i64]) -> Owner {
    match found {
        None => Owner::Nobody,
        Some(found) if leases.contains(&found.lease) => Owner::Us(found.mod_revision),
        Some(_) => Owner::SomebodyElse,
    }
}

/// Looks at and writes one key.
#[derive(Clone)]
struct Desk {
    client: Client,
    key: Bytes,
    /// Those the key was bound to by us of late; the last one is in force.
    leases: Vec<i64>,
}

impl Desk {
    fn lease(&self) -> i64 {
        self.leases.last().copied().unwrap_or_default()
    }

    /// The next put binds it to this one.
    fn bind(&mut self, lease: i64) {
        if self.leases.len() == LEASES_KEPT {
            self.leases.remove(0);
        }
        self.leases.push(lease);
    }

    /// Puts the key if it is ours; and where there is none, if it is to be listed again.
    async fn write(&self, value: &Bytes, again: bool) -> Result<Found> {
        match self.try_write(value, again).await {
            Err(error) if error.kind() == ErrorKind::LeaseNotFound => {
                let _ = self.why_gone().await;
                Ok(Found::Lapsed)
            }
            written => written,
        }
    }

    async fn try_write(&self, value: &Bytes, again: bool) -> Result<Found> {
        let write = || put(self.key.clone(), value.clone()).lease(self.lease());
        loop {
            let key = || self.key.clone();
            let done = self
                .client
                .txn()
                .when([Compare::lease(key()).eq(self.lease())])
                .then([write()])
                .otherwise([get(key())])
                .await?;
            if done.succeeded {
                return Ok(Found::Ours);
            }
            let found = match done.responses.first() {
                Some(OpResponse::Get(found)) => found.first(),
                _ => None,
            };
            let still = match owner(found, &self.leases) {
                Owner::SomebodyElse => return Ok(Found::Taken),
                Owner::Nobody if !again => return self.why_gone().await,
                Owner::Nobody => Compare::version(key()).eq(0),
                // Of a lease before that has not ended yet.
                Owner::Us(revision) => Compare::mod_revision(key()).eq(revision),
            };
            let done = self.client.txn().when([still]).then([write()]).await?;
            if done.succeeded {
                return Ok(Found::Ours);
            }
        }
    }

    /// Looks whose the key is now.
    async fn look(&self) -> Result<Found> {
        let found = self.client.get(self.key.clone()).await?;
        match owner(found.first(), &self.leases) {
            Owner::Us(_) => Ok(Found::Ours),
            Owner::SomebodyElse => Ok(Found::Taken),
            Owner::Nobody => self.why_gone().await,
        }
    }

    /// Lists it again with this value, or looks whose it is, until that is done.
    async fn settle(self, again: Option<Bytes>) -> Result<Found> {
        let mut pause = PAUSE;
        loop {
            let attempt = match &again {
                Some(value) => self.write(value, true).await,
                None => self.look().await,
            };
            let error = match attempt {
                Err(error) if error.kind() != ErrorKind::Shutdown => error,
                done => return done,
            };
            if !passes(&error) {
                tracing::warn!(%error, key = ?self.key, "an instance of a service is not settled yet");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A key that went while its lease lives was deleted by somebody. A kept lease that is asked for and gone is told
    /// to be lost, long before its next keepalive.
    async fn why_gone(&self) -> Result<Found> {
        match self.client.keep_alive_once(self.lease()).await {
            Ok(_) => Ok(Found::Taken),
            Err(error) if error.kind() == ErrorKind::LeaseNotFound => Ok(Found::Lapsed),
            Err(error) => Err(error),
        }
    }
}

type Work = Pin<Box<dyn Future<Output = Result<Found>> + Send>>;

/// Works on one instance until it has ended.
pub(super) struct Registrar {
    desk: Desk,
    session: Session,
    value: Bytes,
    /// It was put with the lease in force.
    listed: bool,
    work: Option<Work>,
    /// What the work at hand would say, and who waits for it.
    update: Option<Update>,
    events: broadcast::Sender<RegistrationEvent>,
    state: watch::Sender<State>,
}

impl Registrar {
    /// Of an instance that is listed: its key, what it says, and the lease it was put with.
    pub(super) fn new(session: Session, key: Bytes, value: Bytes, lease: i64) -> Self {
        Self {
            desk: Desk {
                client: session.client().clone(),
                key,
                leases: vec![lease],
            },
            session,
            value,
            listed: true,
            work: None,
            update: None,
            events: broadcast::Sender::new(EVENTS_KEPT),
            state: watch::Sender::new(State {
                lease: Some(lease),
                ended: None,
            }),
        }
    }

    pub(super) fn events(&self) -> broadcast::Receiver<RegistrationEvent> {
        self.events.subscribe()
    }

    pub(super) fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Works until it has ended, or `end` is dropped or used.
    pub(super) async fn run(
        mut self,
        mut session_events: impl Stream<Item = SessionEvent> + Unpin,
        mut updates: mpsc::Receiver<Update>,
        mut end: oneshot::Receiver<Unregister>,
    ) {
        let mut follow = Some(Follow::key(self.desk.client.clone(), self.desk.key.clone()));
        loop {
            let ready = self.listed && self.work.is_none();
            tokio::select! {
                biased;
                asked = &mut end => {
                    if let Ok(done) = asked {
                        let _ = done.send(self.session.close().await);
                    }
                    return;
                }
                // News of the lease comes first: what happens to the key follows from it.
                Some(event) = session_events.next() => self.hear(&event),
                done = work(&mut self.work) => self.done(done),
                Some(update) = updates.recv(), if ready => self.begin(update),
                seen = next(&mut follow), if ready => match seen {
                    Ok(seen) => self.see(&seen),
                    // Who may not read it is not told who takes it.
                    Err(error) => {
                        tracing::debug!(%error, "the key of an instance is not watched");
                        follow = None;
                    }
                },
            }
            if self.state.borrow().ended.is_some() {
                return;
            }
        }
    }

    fn hear(&mut self, event: &SessionEvent) {
        match *event {
            SessionEvent::AtRisk { deadline } => self.tell(RegistrationEvent::AtRisk { deadline }),
            SessionEvent::Healing(reason) => {
                self.listed = false;
                self.work = None;
                self.tell(RegistrationEvent::Lapsed(reason));
            }
            SessionEvent::Healed { lease, .. } => {
                self.listed = false;
                self.desk.bind(lease);
                let update = self.update.as_ref();
                let value = update.map_or(&self.value, |update| &update.value);
                let settled = self.desk.clone().settle(Some(value.clone()));
                self.work = Some(Box::pin(settled));
            }
            SessionEvent::Lost(reason) => self.tell(RegistrationEvent::Ended(reason)),
        }
    }

    fn begin(&mut self, update: Update) {
        if update.done.is_closed() {
            return;
        }
        let (desk, value) = (self.desk.clone(), update.value.clone());
        self.update = Some(update);
        self.work = Some(Box::pin(async move { desk.write(&value, false).await }));
    }

    /// What is seen may be old: somebody who was there while we were not. What counts is what is there now.
    fn see(&mut self, seen: &Seen) {
        let now = match seen {
            Seen::All(found) => found.first(),
            Seen::Events(events) => events
                .last()
                .filter(|last| last.is_put())
                .and_then(|last| last.kv.as_ref()),
        };
        if !matches!(owner(now, &self.desk.leases), Owner::Us(_)) {
            self.work = Some(Box::pin(self.desk.clone().settle(None)));
        }
    }

    fn done(&mut self, done: Result<Found>) {
        self.work = None;
        match done {
            Ok(Found::Ours) => {
                if let Some(update) = self.update.take() {
                    self.value = update.value;
                    let _ = update.done.send(Ok(()));
                }
                if !std::mem::replace(&mut self.listed, true) {
                    let lease = self.desk.lease();
                    self.state.send_modify(|state| state.lease = Some(lease));
                    self.tell(RegistrationEvent::Restored { lease });
                }
            }
            Ok(Found::Taken) => self.tell(RegistrationEvent::Taken),
            // The session hears of it, too, and heals.
            Ok(Found::Lapsed) => self.listed = false,
            Err(error) => {
                if let Some(update) = self.update.take() {
                    let _ = update.done.send(Err(error));
                }
            }
        }
    }

    fn tell(&self, event: RegistrationEvent) {
        if matches!(
            event,
            RegistrationEvent::Taken | RegistrationEvent::Ended(_)
        ) {
            self.state.send_replace(State {
                lease: None,
                ended: Some(event.clone()),
            });
        }
        // Nobody listening is fine.
        let _ = self.events.send(event);
    }
}

async fn work(work: &mut Option<Work>) -> Result<Found> {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

async fn next(follow: &mut Option<Follow>) -> Result<Seen> {
    match follow {
        Some(follow) => follow.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_ours_by_any_lease_of_ours() {
        let bound = |lease| KeyValue {
            lease,
            mod_revision: 9,
            ..KeyValue::default()
        };
        assert_eq!(owner(None, &[1, 2]), Owner::Nobody);
        assert_eq!(owner(Some(&bound(1)), &[1, 2]), Owner::Us(9));
        assert_eq!(owner(Some(&bound(2)), &[1, 2]), Owner::Us(9));
        assert_eq!(owner(Some(&bound(3)), &[1, 2]), Owner::SomebodyElse);
        assert_eq!(owner(Some(&bound(0)), &[1, 2]), Owner::SomebodyElse);
    }
}
