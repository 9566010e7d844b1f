//! An election: of all candidates one leads at a time, and everybody can see who.
//!
//! The layout of the keys is that of the Go client's `concurrency` package, so that Go programs and `etcdctl elect`
//! take part in the same election. As there, every key under `<name>/` counts: do not nest names. What
//! [is said of locks](super::mutex#what-holds-when) is true of leaders, too.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//! use actix_etcd::recipes::election::LeaderEvent;
//!
//! let session = etcd.session(Duration::from_secs(10)).await?;
//! let leadership = session.election("jobs").campaign("10.0.0.1").await?;
//! tokio::select! {
//!     loss = leadership.lost() => println!("not the leader any more: {loss}"),
//!     () = tokio::time::sleep(Duration::from_secs(60)) => leadership.resign().await?,
//! }
//!
//! let mut leaders = etcd.leaders("jobs");
//! while let Some(event) = leaders.next().await {
//!     match event {
//!         LeaderEvent::Leads(leader) => println!("{:?} leads", leader.value),
//!         LeaderEvent::NoLeader => println!("nobody leads"),
//!         _ => break,
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::{fmt, ops::Deref};

use actix::{Message, Recipient};
use bytes::Bytes;

pub use super::{
    claim::ClaimHandle,
    held::Ownership,
    observation::Subscription,
    race::{Leader, LeaderEvent, Leaders},
    subscribe::SubscribeLeaders,
    tenure::OwnershipLost,
};
use super::{
    claim::{Hold, Told, claim},
    observation::deliver,
    place::Place,
    queue::{Queue, prefix},
    session::Session,
};
use crate::{
    client::Client,
    error::{Error, Result},
    kv::{Compare, put},
    request::IntoBytes,
};

/// An election, as a candidate sees it.
#[derive(Clone)]
pub struct Election {
    queue: Queue,
}

impl Session {
    /// The election of that name.
    pub fn election(&self, name: impl IntoBytes) -> Election {
        Election::new(self, name)
    }
}

impl Client {
    /// Every change of who leads the election of that name, from the state it is in now. Needs no session.
    pub fn leaders(&self, name: impl IntoBytes) -> Leaders {
        Leaders::new(self.clone(), prefix(&name.into_bytes()))
    }

    /// Who leads the election of that name now.
    pub async fn leader(&self, name: impl IntoBytes) -> Result<Option<Leader>> {
        leader(self, &prefix(&name.into_bytes())).await
    }

    /// Sends every change of who leads the election of that name to an actor, the next one when the last was handled,
    /// until that actor or the client ends, or the handle is dropped. Of a client that has ended, that is told.
    pub fn send_leaders_to(
        &self,
        name: impl IntoBytes,
        recipient: Recipient<LeaderEvent>,
    ) -> Subscription {
        let last = LeaderEvent::Ended(Error::shut_down());
        deliver(self, self.leaders(name), recipient, Some(last))
    }
}

/// The election of that name, for a message to the actor [`Etcd`](crate::Etcd) that asks to be told who leads.
pub fn leaders(name: impl IntoBytes) -> ObserveLeaders {
    ObserveLeaders(name.into_bytes())
}

/// An election to be observed. Made by [`leaders`].
#[derive(Debug, Clone)]
#[must_use = "it becomes a message with `.deliver_to(recipient)`"]
pub struct ObserveLeaders(Bytes);

impl ObserveLeaders {
    /// A message to the actor [`Etcd`](crate::Etcd): tell this actor of every change of who leads.
    pub fn deliver_to(self, recipient: Recipient<LeaderEvent>) -> SubscribeLeaders {
        SubscribeLeaders {
            name: self.0,
            recipient,
        }
    }
}

impl Election {
    /// The election of that name, for this session as a candidate.
    pub fn new(session: &Session, name: impl IntoBytes) -> Self {
        Self {
            queue: Queue::new(session, &name.into_bytes()),
        }
    }

    /// Waits until this candidate leads. Dropping the future withdraws it.
    ///
    /// Outages are waited out for as long as the session lives. Fails with
    /// [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) at once when it is lost, with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) where somebody deleted its key, and where the user may not
    /// do this. Nothing stays behind then.
    pub async fn campaign(&self, value: impl IntoBytes) -> Result<Leadership> {
        let value = value.into_bytes();
        let place = self.queue.join(value.clone()).await?;
        place.first().await?;
        Leadership::won(place, value).await
    }

    /// Campaigns on behalf of an actor, which is told by messages: that it leads, and how that ended. It resigns when
    /// the claim is dropped, or the actor ends.
    pub fn campaign_for(
        &self,
        value: impl IntoBytes,
        recipient: Recipient<CandidateEvent>,
    ) -> ClaimHandle {
        let value = value.into_bytes();
        let proclaimed = value.clone();
        let hold = move |place| Leadership::won(place, proclaimed);
        claim(self.queue.clone(), value, hold, recipient)
    }

    /// Takes over a leadership that was won before, by a session whose process was restarted: with the key and the
    /// token of then, and without anybody else leading in between. `None` where it is lost: campaign anew.
    ///
    /// Works while the lease of the former session has not expired. From then on the leadership is bound to this
    /// session, and the former one, should it still be there, has lost it. Where this fails or is dropped halfway, the
    /// leadership may be bound to this session already: call it again, or close the session. Fails with
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) where the token is not above zero, or the key
    /// is not one of this election.
    pub async fn resume(
        &self,
        key: impl IntoBytes,
        token: i64,
        value: impl IntoBytes,
    ) -> Result<Option<Leadership>> {
        let (key, value) = (key.into_bytes(), value.into_bytes());
        if !key.starts_with(&self.queue.prefix) {
            return Err(Error::invalid("the key is not one of this election"));
        }
        // A create revision of zero is that of a key that does not exist: it would be created.
        if token <= 0 {
            return Err(Error::invalid("a token is above zero"));
        }
        let tenure = self.queue.tenure()?;
        let turn = self.queue.turn(&tenure).await?;
        let rebind = self
            .queue
            .client
            .txn()
            .when([Compare::create_revision(key.clone()).eq(token)])
            .then([put(key.clone(), value).lease(tenure.lease())])
            .await?;
        if !rebind.succeeded {
            return Ok(None);
        }
        let place = Place {
            held: Ownership {
                client: self.queue.client.clone(),
                tenure,
                key,
                token,
            },
            prefix: self.queue.prefix.clone(),
            adopted: true,
            unsure: None,
            turn: Some(turn),
        };
        // It may have been a candidate only.
        place.first().await?;
        Ok(Some(Leadership { place }))
    }

    /// Who leads now.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        leader(&self.queue.client, &self.queue.prefix).await
    }

    /// Every change of who leads, from the state it is in now: every leader, every proclamation of a leader, and when
    /// nobody leads.
    pub fn observe(&self) -> Leaders {
        Leaders::new(self.queue.client.clone(), self.queue.prefix.clone())
    }
}

/// What an actor is told of its candidacy.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum CandidateEvent {
    /// It leads.
    Elected(Ownership),
    /// It does not lead any more, or not for certain: somebody else may. Nothing follows.
    Lost(OwnershipLost),
    /// It has resigned, or is no candidate any more. Nothing follows.
    Resigned,
    /// It can't be a candidate. Nothing follows.
    Failed(Error),
}

impl From<Told> for CandidateEvent {
    fn from(told: Told) -> Self {
        match told {
            Told::Held(held) => Self::Elected(held),
            Told::Lost(loss) => Self::Lost(loss),
            Told::Left => Self::Resigned,
            Told::Failed(error) => Self::Failed(error),
        }
    }
}

impl Hold for Leadership {
    async fn leave(self) -> Result<()> {
        self.resign().await
    }
}

async fn leader(client: &Client, prefix: &Bytes) -> Result<Option<Leader>> {
    let first = client.get(prefix.clone()).prefix();
    let first = first.first_by_create_revision().await?;
    Ok(first.first().map(Leader::from))
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("prefix", &self.queue.prefix)
            .finish_non_exhaustive()
    }
}

/// An election that was won. Dropped, it is resigned in the background.
#[must_use = "a leadership that is dropped is resigned"]
pub struct Leadership {
    place: Place,
}

impl Leadership {
    async fn won(place: Place, value: Bytes) -> Result<Self> {
        let adopted = place.adopted;
        let leadership = Self { place };
        // Of a key that was there already, the value may be another one.
        if adopted {
            leadership.proclaim(value).await?;
        }
        Ok(leadership)
    }

    /// Tells everybody something new. Fails with [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) where this does
    /// not lead any more.
    pub async fn proclaim(&self, value: impl IntoBytes) -> Result<()> {
        let proclamation = put(self.key().clone(), value).lease(self.lease());
        let done = self.txn().then([proclamation]).await?;
        if done.succeeded {
            Ok(())
        } else {
            Err(OwnershipLost::Taken.into())
        }
    }

    /// Gives the leadership up and waits for it. Fails with
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost) if it was lost before.
    pub async fn resign(self) -> Result<()> {
        if self.place.leave().await? {
            Ok(())
        } else {
            Err(OwnershipLost::Taken.into())
        }
    }
}

impl Deref for Leadership {
    type Target = Ownership;

    fn deref(&self) -> &Ownership {
        &self.place.held
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&**self).finish()
    }
}
