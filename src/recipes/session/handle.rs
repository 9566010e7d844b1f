//! A session in the hands of its owner.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use actix::Addr;
use bytes::Bytes;
use tokio::{
    sync::{broadcast, watch},
    time::{Instant, timeout_at},
};
use tokio_stream::{Stream, StreamExt, wrappers::BroadcastStream};

use super::{
    SessionEvent,
    healing::{End, SessionActor},
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, PutResponse},
    lease::{
        Lease, LeaseLost,
        engine::clock::{later, now},
    },
    recipes::{tenure::TermCell, turns::Turns},
    request::IntoBytes,
};

/// A reader that is further behind loses the oldest events.
const EVENTS_KEPT: usize = 64;
/// Between two attempts to put a key while the lease is found out to be lost.
const PAUSE: Duration = Duration::from_millis(100);

/// A kept lease and the keys bound to it. Dropped, its lease is revoked.
#[must_use = "a session ends when it is dropped"]
pub struct Session {
    client: Client,
    shared: Arc<Shared>,
    heals: bool,
    actor: Addr<SessionActor>,
}

/// What the handle, its actor, and locks and elections share.
pub(in crate::recipes) struct Shared {
    state: Mutex<State>,
    /// Ownership while keys are put, so that none is put with a lease that is being replaced.
    pub(super) healing: tokio::sync::Mutex<()>,
    events: broadcast::Sender<SessionEvent>,
    lost: watch::Sender<Option<LeaseLost>>,
    /// What locks and elections go by.
    pub(in crate::recipes) term: TermCell,
    /// Tasks that share a session have one key in a queue: they take turns before they get there.
    pub(in crate::recipes) turns: Turns,
}

pub(super) struct State {
    pub(super) lease: Option<Lease>,
    /// Every lease it ever had: what is bound to one of them is its own.
    pub(super) leases: Vec<i64>,
    pub(super) keys: HashMap<Bytes, Mine>,
    /// Keys that an attempt to heal found to be somebody else's. Told when one succeeds.
    pub(super) taken: Vec<Bytes>,
    /// The handle is gone: no lease comes in any more.
    closed: bool,
}

/// A key as this session put it.
#[derive(Clone)]
pub(super) struct Mine {
    pub(super) value: Bytes,
    pub(super) revision: i64,
}

impl Session {
    pub(super) fn new(
        client: Client,
        shared: Arc<Shared>,
        actor: Addr<SessionActor>,
        heals: bool,
    ) -> Self {
        Self {
            client,
            shared,
            heals,
            actor,
        }
    }

    /// Its lease; another one after it was healed. `None` once it is lost.
    pub fn lease(&self) -> Option<i64> {
        self.shared.lock().lease.as_ref().map(Lease::id)
    }

    /// How long the server has its lease for certain.
    pub fn remaining(&self) -> Duration {
        self.shared.remaining(|_| true)
    }

    /// The client it was opened with.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(in crate::recipes) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn actor(&self) -> &Addr<SessionActor> {
        &self.actor
    }

    /// Puts a key that is bound to the session: deleted when it ends, put again when it heals. While it heals, this
    /// waits, for at most the client's `request_timeout`. Fails with [`ErrorKind::LeaseNotFound`] once the session is
    /// lost.
    pub async fn put(&self, key: impl IntoBytes, value: impl IntoBytes) -> Result<PutResponse> {
        let (key, value) = (key.into_bytes(), value.into_bytes());
        let deadline = self.deadline();
        loop {
            let no_healing = self.no_healing(deadline).await?;
            let lease = self.lease().ok_or_else(lost_session)?;
            let write = self.client.put(key.clone(), value.clone()).lease(lease);
            let error = match write.timeout(left(deadline)).await {
                Ok(done) => {
                    let revision = done.header.revision;
                    let mine = Mine { value, revision };
                    let mut state = self.shared.lock();
                    state.taken.retain(|taken| *taken != key);
                    state.keys.insert(key, mine);
                    return Ok(done);
                }
                Err(error) => error,
            };
            let gone = error.kind() == ErrorKind::LeaseNotFound;
            if !gone || !self.heals || left(deadline).is_zero() {
                return Err(error);
            }
            drop(no_healing);
            // A kept lease that is asked for and gone is told to be lost, long before its next keepalive.
            let once = self.client.keep_alive_once(lease);
            let _ = once.timeout(left(deadline)).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Deletes a key of the session, which is not put again; unless somebody else has put it in the meantime. Tells
    /// whether it was there. If that fails, the key is still the session's.
    pub async fn delete(&self, key: impl IntoBytes) -> Result<bool> {
        let key = key.into_bytes();
        let deadline = self.deadline();
        let _no_healing = self.no_healing(deadline).await?;
        let mine = self.shared.lock().keys.get(&key).cloned();
        let Some(mine) = mine else {
            return Ok(false);
        };
        let done = self
            .client
            .txn()
            .when([Compare::mod_revision(key.clone()).eq(mine.revision)])
            .then([crate::kv::delete(key.clone())])
            .timeout(left(deadline))
            .await?;
        self.shared.lock().keys.remove(&key);
        Ok(done.succeeded)
    }

    /// When a request that begins now is over.
    fn deadline(&self) -> Instant {
        Instant::from_std(later(now(), self.client.request_timeout()))
    }

    /// Waits until keys can be changed: neither healing nor another call is about to.
    async fn no_healing(&self, deadline: Instant) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        let turn = timeout_at(deadline, self.shared.healing.lock()).await;
        turn.map_err(|_| {
            let text = "the session is still healing, or waits for another of its keys";
            Error::new(ErrorKind::DeadlineExceeded, Outcome::NotSent, text)
        })
    }

    /// What happens to it from now on.
    pub fn events(&self) -> impl Stream<Item = SessionEvent> + Send + Unpin + use<> {
        BroadcastStream::new(self.shared.events.subscribe()).filter_map(std::result::Result::ok)
    }

    /// Waits until it is lost for good, and tells why. With [`heal`](super::SessionBuilder::heal) that is only when the client
    /// is shut down or this user may not keep leases.
    pub fn lost(&self) -> impl Future<Output = LeaseLost> + Send + 'static + use<> {
        let mut lost = self.shared.lost.subscribe();
        async move {
            let reason = lost.wait_for(Option::is_some).await.map(|reason| *reason);
            match reason {
                Ok(Some(reason)) => reason,
                // The session was dropped: it did not lose its lease, it gave it up.
                _ => std::future::pending().await,
            }
        }
    }

    /// Ends it: its lease is revoked and its keys are deleted.
    pub async fn close(self) -> Result<()> {
        match self.shared.close() {
            Some(lease) => lease.revoke().await,
            None => Ok(()),
        }
    }

    /// Ends it and leaves its lease and its keys alone: for a process that starts again within the lease's time, or
    /// hands over to another one, which may keep the lease by its id. Locks and leaderships held with the session are
    /// told to be lost. `None` if it has no lease now.
    pub fn detach(self) -> Option<i64> {
        let lease = self.shared.close()?;
        let is_lost = lease.is_lost();
        let id = lease.detach();
        (!is_lost).then_some(id)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its own drop revokes it.
        drop(self.shared.close());
        self.actor.do_send(End);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("lease", &self.lease())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(lease: Lease) -> Arc<Self> {
        let id = lease.id();
        Arc::new(Self {
            state: Mutex::new(State {
                leases: vec![id],
                lease: Some(lease),
                keys: HashMap::new(),
                taken: Vec::new(),
                closed: false,
            }),
            healing: tokio::sync::Mutex::new(()),
            events: broadcast::Sender::new(EVENTS_KEPT),
            lost: watch::Sender::new(None),
            term: TermCell::new(id),
            turns: Turns::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with a new lease; `false` if the handle is gone, and the lease with it.
    pub(super) fn replace(&self, lease: Lease) -> bool {
        let id = lease.id();
        let mut state = self.lock();
        if state.closed {
            drop(state);
            drop(lease);
            return false;
        }
        let before = state.lease.replace(lease);
        drop(state);
        // Never confirmed is not gone: nothing of the old one may stay.
        drop(before);
        self.term.begin(id);
        true
    }

    /// It is lost for good.
    pub(super) fn end(&self, reason: LeaseLost) {
        drop(self.lock().lease.take());
        self.tell(SessionEvent::Lost(reason));
        self.lost.send_replace(Some(reason));
    }

    /// Nobody follows it any more. If its end was not told and its handle is there, that is the end of the client.
    pub(super) fn abandon(&self) {
        if !self.lock().closed && self.lost.borrow().is_none() {
            self.term.lost(LeaseLost::Shutdown);
            self.end(LeaseLost::Shutdown);
        }
    }

    /// Its handle is gone. What it had is given to who ends it.
    fn close(&self) -> Option<Lease> {
        self.term.close();
        let mut state = self.lock();
        state.closed = true;
        state.lease.take()
    }

    /// How long the server has the lease for certain, if it is the one meant.
    pub(in crate::recipes) fn remaining(&self, meant: impl FnOnce(i64) -> bool) -> Duration {
        let state = self.lock();
        let lease = state.lease.as_ref().filter(|lease| meant(lease.id()));
        lease.map_or(Duration::ZERO, Lease::remaining)
    }

    pub(super) fn tell(&self, event: SessionEvent) {
        // Nobody listening is fine.
        let _ = self.events.send(event);
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn lost_session() -> Error {
    Error::new(
        ErrorKind::LeaseNotFound,
        Outcome::NotSent,
        "the session is lost",
    )
}
