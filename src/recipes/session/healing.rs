//! Follows the lease of a session and heals it.

use std::{sync::Arc, time::Duration};

use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, Supervised,
    WrapFuture,
};
use bytes::Bytes;
use tokio_stream::StreamExt;

use super::{
    SessionBuilder, SessionEvent,
    handle::{Mine, Shared},
};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, OpResponse, get, put},
    lease::{
        Lease, LeaseEvent, LeaseEvents, LeaseLost,
        engine::clock::{later, now},
    },
    runtime::supervisor::{crashes, supervise},
};

/// Between two attempts to heal, growing from the first to the second.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The session's handle is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct End;

/// Follows one session until it is lost for good or its handle is gone. What it knows is in what it shares with the
/// handle: started again after a crash, it hears of a lost lease again and heals it from the beginning.
pub(crate) struct SessionActor {
    healer: Arc<Healer>,
}

impl SessionActor {
    pub(super) fn start(builder: SessionBuilder, shared: Arc<Shared>) -> Addr<Self> {
        let healer = Arc::new(Healer { builder, shared });
        supervise("session", |_| {}, |_| Self { healer })
    }
}

impl Actor for SessionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let healer = self.healer.clone();
        let follow = async move { healer.follow().await };
        ctx.spawn(follow.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }
}

impl Supervised for SessionActor {}

crashes!(SessionActor);

impl Drop for SessionActor {
    fn drop(&mut self) {
        self.healer.shared.abandon();
    }
}

impl Handler<End> for SessionActor {
    type Result = ();

    fn handle(&mut self, _: End, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

struct Healer {
    builder: SessionBuilder,
    shared: Arc<Shared>,
}

impl Healer {
    async fn follow(&self) {
        // A lease that is lost says so to everybody who comes later.
        let events = self.shared.lock().lease.as_ref().map(Lease::events);
        let Some(mut events) = events else { return };
        loop {
            let Some(reason) = self.loss(&mut events).await else {
                return;
            };
            self.shared.term.lost(reason);
            let last = matches!(reason, LeaseLost::Shutdown | LeaseLost::PermissionDenied);
            if last || !self.builder.heal {
                return self.shared.end(reason);
            }
            self.shared.tell(SessionEvent::Healing(reason));
            match self.heal().await {
                Ok(Some(healed)) => events = healed,
                Ok(None) => return,
                Err(_) => return self.shared.end(LeaseLost::Shutdown),
            }
        }
    }

    /// Waits until the lease is lost; `None` if it was given up.
    async fn loss(&self, events: &mut LeaseEvents) -> Option<LeaseLost> {
        loop {
            match events.next().await? {
                LeaseEvent::Lost(reason) => return Some(reason),
                LeaseEvent::AtRisk { deadline } => {
                    self.shared.term.at_risk();
                    self.shared.tell(SessionEvent::AtRisk { deadline });
                }
                LeaseEvent::Renewed { .. } => self.shared.term.certain(),
            }
        }
    }

    /// Tries until there is a new lease and every key is put or known to be somebody else's. Nothing if nobody wants
    /// it any more; fails when the client is shut down.
    async fn heal(&self) -> Result<Option<LeaseEvents>> {
        let _no_puts = self.shared.healing.lock().await;
        let mut pause = PAUSE;
        loop {
            match self.heal_once().await {
                Err(error) if error.kind() != ErrorKind::Shutdown => {
                    tracing::warn!(%error, "a session is not healed yet");
                    tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                healed => return healed,
            }
        }
    }

    async fn heal_once(&self) -> Result<Option<LeaseEvents>> {
        let lease = self.grant().await?;
        let events = lease.events();
        let id = lease.id();
        let keys: Vec<(Bytes, Mine)> = {
            let mut state = self.shared.lock();
            state.leases.push(id);
            let mine = state.keys.iter();
            mine.map(|(key, mine)| (key.clone(), mine.clone()))
                .collect()
        };
        for (key, mine) in keys {
            let revision = self.put_again(&key, &mine, id).await?;
            let mut state = self.shared.lock();
            if let Some(revision) = revision {
                state.keys.insert(key, Mine { revision, ..mine });
            } else {
                state.keys.remove(&key);
                state.taken.push(key);
            }
        }
        if !self.shared.replace(lease) {
            return Ok(None);
        }
        let taken = std::mem::take(&mut self.shared.lock().taken);
        self.shared.tell(SessionEvent::Healed { lease: id, taken });
        Ok(Some(events))
    }

    /// Grants the new lease in a task of its own: when nobody waits for it any more, because the session was dropped
    /// or its actor crashed, the grant under way still ends in a handle, whose drop revokes it.
    async fn grant(&self) -> Result<Lease> {
        let grant = actix_rt::spawn(self.builder.grant().into_future());
        grant.await.unwrap_or_else(|panicked| {
            let text = "the grant of a new lease was interrupted";
            Err(Error::new(ErrorKind::Other, Outcome::Unknown, text).with_source(panicked))
        })
    }

    /// Puts a key unless it is somebody else's now; the revision of the put.
    async fn put_again(&self, key: &Bytes, mine: &Mine, lease: i64) -> Result<Option<i64>> {
        let client = &self.builder.client;
        let patience = later(now(), client.request_timeout());
        let write = || put(key.clone(), mine.value.clone()).lease(lease);
        loop {
            let absent = client
                .txn()
                .when([Compare::version(key.clone()).eq(0)])
                .then([write()])
                .otherwise([get(key.clone())])
                .await?;
            if absent.succeeded {
                return Ok(Some(absent.header.revision));
            }
            let found = match absent.responses.first() {
                Some(OpResponse::Get(found)) => found.first(),
                _ => None,
            };
            let found = found.ok_or_else(|| {
                let text = "the answer does not have the key that is there";
                Error::new(ErrorKind::Protocol, Outcome::Rejected, text)
            })?;
            // Of an attempt whose answer was lost, or of a lease that was never confirmed to be gone.
            let ours = found.mod_revision == mine.revision
                || self.shared.lock().leases.contains(&found.lease);
            if !ours {
                return Ok(None);
            }
            let still = client
                .txn()
                .when([Compare::mod_revision(key.clone()).eq(found.mod_revision)])
                .then([write()])
                .await?;
            if still.succeeded {
                return Ok(Some(still.header.revision));
            }
            // It may have gone with the lease it was found with: that makes it nobody else's.
            if now() >= patience {
                let text = "the key changes whenever it is to be put again";
                return Err(Error::new(ErrorKind::Other, Outcome::Rejected, text));
            }
        }
    }
}
