//! A session: a kept lease, the keys bound to it, and a future that resolves when it is lost.
//!
//! With [`heal`](SessionBuilder::heal) a lost lease is no end: a new one is granted and the keys are put again, which
//! is what service registration needs. A key that somebody else has put in the meantime is theirs: it is left alone,
//! and the session tells so.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//!
//! let session = etcd.session(Duration::from_secs(5)).heal().await?;
//! session.put("service/a", "10.0.0.1").await?;
//! # Ok(())
//! # }
//! ```

use std::{
    collections::HashMap,
    fmt,
    future::IntoFuture,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::{broadcast, watch};
use tokio_stream::{Stream, StreamExt, wrappers::BroadcastStream};

use crate::{
    api::{
        IntoBytes,
        kv::{OpResponse, PutResponse, get, mod_revision, put, version},
    },
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    lease::{Grant, Lease, LeaseEvent, LeaseEvents, LostReason},
};

use super::{tenure::TermCell, turns::Turns};

/// A reader that is further behind loses the oldest events.
const EVENTS_KEPT: usize = 64;
/// Between two attempts to heal, growing from the first to the second.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What happened to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// The deadline of its lease has passed without an answer; the server may still have it.
    AtRisk {
        /// The deadline that has passed.
        deadline: Instant,
    },
    /// Its lease was lost; a new one is being granted.
    Healing(LostReason),
    /// It has a new lease, and its keys are put again.
    Healed {
        /// The new lease.
        lease: i64,
        /// The keys that are not, as somebody else has put them in the meantime.
        taken: Vec<Bytes>,
    },
    /// It is lost. Nothing follows.
    Lost(LostReason),
}

/// Makes a [`Session`].
#[derive(Debug, Clone)]
#[must_use = "a session is made when it is awaited"]
pub struct SessionBuilder {
    client: Client,
    ttl: Duration,
    give_up_after: Option<Duration>,
    heal: bool,
}

impl SessionBuilder {
    /// Grants a new lease and puts the keys again when the lease is lost. Default: a lost lease is the end.
    pub fn heal(mut self) -> Self {
        self.heal = true;
        self
    }

    /// How long past its deadline the lease is asked for when nobody answers. Default: twice the time to live.
    pub fn give_up_after(mut self, after: Duration) -> Self {
        self.give_up_after = Some(after);
        self
    }

    fn grant(&self) -> Grant<Client> {
        let grant = self.client.lease(self.ttl).keep_alive().revoke_on_drop();
        match self.give_up_after {
            Some(after) => grant.give_up_after(after),
            None => grant,
        }
    }

    async fn open(self) -> Result<Session> {
        let lease = self.grant().await?;
        let events = lease.events();
        let id = lease.id();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                leases: vec![id],
                lease: Some(lease),
                keys: HashMap::new(),
            }),
            healing: tokio::sync::Mutex::new(()),
            events: broadcast::Sender::new(EVENTS_KEPT),
            lost: watch::Sender::new(None),
            term: TermCell::new(id),
            turns: Turns::default(),
        });
        let (end, ended) = watch::channel(());
        let keeper = Keeper {
            builder: self.clone(),
            shared: shared.clone(),
        };
        // On the client's thread: an application that blocks its own still gets its keys back.
        let started = self.client.run(move || {
            actix_rt::spawn(keeper.run(events, ended));
        });
        if !started {
            return Err(crate::runtime::shut_down());
        }
        Ok(Session {
            client: self.client,
            shared,
            heals: self.heal,
            _end: end,
        })
    }
}

impl IntoFuture for SessionBuilder {
    type Output = Result<Session>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Session>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl Client {
    /// Opens a session: a kept lease that is revoked when the session is dropped.
    pub fn session(&self, ttl: Duration) -> SessionBuilder {
        SessionBuilder {
            client: self.clone(),
            ttl,
            give_up_after: None,
            heal: false,
        }
    }
}

/// A kept lease and the keys bound to it. Dropped, its lease is revoked.
#[must_use = "a session ends when it is dropped"]
pub struct Session {
    client: Client,
    shared: Arc<Shared>,
    heals: bool,
    /// Dropped, it ends the task that heals.
    _end: watch::Sender<()>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    /// Held while keys are put, so that none is put with a lease that is being replaced.
    healing: tokio::sync::Mutex<()>,
    events: broadcast::Sender<SessionEvent>,
    lost: watch::Sender<Option<LostReason>>,
    /// What locks and elections go by.
    pub(super) term: TermCell,
    /// Tasks that share a session have one key in a queue: they take turns before they get there.
    pub(super) turns: Turns,
}

struct State {
    lease: Option<Lease>,
    /// Every lease it ever had: what is bound to one of them is its own.
    leases: Vec<i64>,
    keys: HashMap<Bytes, Mine>,
}

/// A key as this session put it.
#[derive(Clone)]
struct Mine {
    value: Bytes,
    revision: i64,
}

impl Session {
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

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Puts a key that is bound to the session: deleted when it ends, put again when it heals. While it heals, this
    /// waits. Fails with [`ErrorKind::LeaseNotFound`] once the session is lost.
    pub async fn put(&self, key: impl IntoBytes, value: impl IntoBytes) -> Result<PutResponse> {
        let (key, value) = (key.into_bytes(), value.into_bytes());
        let patience = Instant::now() + self.client.request_timeout();
        loop {
            let no_healing = self.shared.healing.lock().await;
            let lease = self.lease().ok_or_else(lost_session)?;
            let write = self.client.put(key.clone(), value.clone());
            let error = match write.lease(lease).await {
                Ok(done) => {
                    let revision = done.header.revision;
                    let mine = Mine { value, revision };
                    self.shared.lock().keys.insert(key, mine);
                    return Ok(done);
                }
                Err(error) => error,
            };
            let gone = error.kind() == ErrorKind::LeaseNotFound;
            if !gone || !self.heals || Instant::now() > patience {
                return Err(error);
            }
            drop(no_healing);
            // A kept lease that is asked for and gone is told to be lost, long before its next keepalive.
            let _ = self.client.keep_alive_once(lease).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Deletes a key of the session, which is not put again; unless somebody else has put it in the meantime. Tells
    /// whether it was there.
    pub async fn delete(&self, key: impl IntoBytes) -> Result<bool> {
        let key = key.into_bytes();
        let _no_healing = self.shared.healing.lock().await;
        let Some(mine) = self.shared.lock().keys.remove(&key) else {
            return Ok(false);
        };
        let done = self
            .client
            .txn()
            .when([mod_revision(key.clone()).eq(mine.revision)])
            .then([crate::api::kv::delete(key)])
            .await?;
        Ok(done.succeeded)
    }

    /// What happens to it from now on.
    pub fn events(&self) -> impl Stream<Item = SessionEvent> + Send + Unpin + use<> {
        BroadcastStream::new(self.shared.events.subscribe()).filter_map(std::result::Result::ok)
    }

    /// Waits until it is lost for good, and tells why. With [`heal`](SessionBuilder::heal) that is only when the client
    /// is shut down or this user may not keep leases.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
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
        self.shared.term.close();
        let lease = self.shared.lock().lease.take();
        match lease {
            Some(lease) => lease.revoke().await,
            None => Ok(()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.term.close();
        // Its own drop revokes it.
        drop(self.shared.lock().lease.take());
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the server has the lease for certain, if it is the one meant.
    pub(super) fn remaining(&self, meant: impl FnOnce(i64) -> bool) -> Duration {
        let state = self.lock();
        let lease = state.lease.as_ref().filter(|lease| meant(lease.id()));
        lease.map_or(Duration::ZERO, Lease::remaining)
    }

    fn tell(&self, event: SessionEvent) {
        // Nobody listening is fine.
        let _ = self.events.send(event);
    }
}

fn lost_session() -> Error {
    Error::new(
        ErrorKind::LeaseNotFound,
        Outcome::NotSent,
        "the session is lost",
    )
}

/// Follows the lease and heals the session.
struct Keeper {
    builder: SessionBuilder,
    shared: Arc<Shared>,
}

impl Keeper {
    async fn run(self, events: LeaseEvents, mut ended: watch::Receiver<()>) {
        tokio::select! {
            // An error: the session was dropped.
            _ = ended.changed() => {}
            () = self.follow(events) => {}
        }
    }

    async fn follow(&self, mut events: LeaseEvents) {
        loop {
            let reason = loop {
                match events.next().await {
                    Some(LeaseEvent::Lost(reason)) => break reason,
                    Some(LeaseEvent::AtRisk { deadline }) => {
                        self.shared.term.at_risk();
                        self.shared.tell(SessionEvent::AtRisk { deadline });
                    }
                    Some(LeaseEvent::Renewed { .. }) => self.shared.term.certain(),
                    None => return,
                }
            };
            self.shared.term.lost(reason);
            let last = matches!(reason, LostReason::Shutdown | LostReason::PermissionDenied);
            if last || !self.builder.heal {
                self.lost(reason);
                return;
            }
            self.shared.tell(SessionEvent::Healing(reason));
            let Some(healed) = self.heal().await else {
                self.lost(LostReason::Shutdown);
                return;
            };
            events = healed;
        }
    }

    fn lost(&self, reason: LostReason) {
        drop(self.shared.lock().lease.take());
        self.shared.tell(SessionEvent::Lost(reason));
        self.shared.lost.send_replace(Some(reason));
    }

    /// Tries until there is a new lease and every key is put or known to be somebody else's.
    async fn heal(&self) -> Option<LeaseEvents> {
        let _no_puts = self.shared.healing.lock().await;
        let mut pause = PAUSE;
        loop {
            match self.heal_once().await {
                Ok(events) => return Some(events),
                Err(error) if error.kind() == ErrorKind::Shutdown => return None,
                Err(error) => {
                    tracing::warn!(%error, "a session is not healed yet");
                    tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    async fn heal_once(&self) -> Result<LeaseEvents> {
        let lease = self.builder.grant().await?;
        let events = lease.events();
        self.shared.lock().leases.push(lease.id());
        let keys: Vec<(Bytes, Mine)> = {
            let state = self.shared.lock();
            let mine = state.keys.iter();
            mine.map(|(key, mine)| (key.clone(), mine.clone()))
                .collect()
        };
        let mut taken = Vec::new();
        for (key, mine) in keys {
            let revision = self.put_again(&key, &mine, lease.id()).await?;
            let mut state = self.shared.lock();
            if let Some(revision) = revision {
                state.keys.insert(key, Mine { revision, ..mine });
            } else {
                state.keys.remove(&key);
                taken.push(key);
            }
        }
        let id = lease.id();
        let before = self.shared.lock().lease.replace(lease);
        // Never confirmed is not gone: nothing of the old one may stay.
        drop(before);
        self.shared.term.begin(id);
        self.shared.tell(SessionEvent::Healed { lease: id, taken });
        Ok(events)
    }

    /// Puts a key unless it is somebody else's now; the revision of the put.
    async fn put_again(&self, key: &Bytes, mine: &Mine, lease: i64) -> Result<Option<i64>> {
        let client = &self.builder.client;
        let write = || put(key.clone(), mine.value.clone()).lease(lease);
        let absent = client
            .txn()
            .when([version(key.clone()).eq(0)])
            .then([write()])
            .otherwise([get(key.clone())])
            .await?;
        if absent.succeeded {
            return Ok(Some(absent.header.revision));
        }
        let Some(OpResponse::Get(found)) = absent.responses.first() else {
            return Ok(None);
        };
        // Of an attempt whose answer was lost, or of a lease that was never confirmed to be gone.
        let ours = found.first().filter(|found| {
            found.mod_revision == mine.revision || self.shared.lock().leases.contains(&found.lease)
        });
        let Some(revision) = ours.map(|found| found.mod_revision) else {
            return Ok(None);
        };
        let still = client
            .txn()
            .when([mod_revision(key.clone()).eq(revision)])
            .then([write()])
            .await?;
        Ok(still.succeeded.then_some(still.header.revision))
    }
}
