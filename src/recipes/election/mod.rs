//! An election: one candidate leads at a time, and every client can read which one.
//!
//! Keys have the layout of the Go client's `concurrency` package, so Go programs and `etcdctl elect` take part in the
//! same election. As in Go, every key under `<name>/` counts as a candidate: do not nest names. Two leaders are
//! possible [under the same conditions as two owners of a lock](super::mutex#when-two-owners-are-possible), and the
//! same features protect against that.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//! use actix_etcd::recipes::election::LeaderEvent;
//!
//! let session = etcd.session(Duration::from_secs(10)).await?;
//! let leadership = session.election("jobs").campaign("10.0.0.1").await?;
//! tokio::select! {
//!     loss = leadership.lost() => println!("leadership lost: {loss}"),
//!     () = tokio::time::sleep(Duration::from_secs(60)) => leadership.resign().await?,
//! }
//!
//! let mut leaders = etcd.leaders("jobs");
//! while let Some(event) = leaders.next().await {
//!     match event {
//!         LeaderEvent::Leads(leader) => println!("{:?} leads", leader.value),
//!         LeaderEvent::NoLeader => println!("no leader"),
//!         _ => break,
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Actors take part by messages:
//! - `election.campaign(value).deliver_to(recipient)` campaigns for an actor, which receives [`CandidateEvent`]s.
//! - `etcd.leaders("jobs").deliver_to(recipient)` sends [`LeaderEvent`]s to an actor.
//! - [`leaders`](fn@leaders)`("jobs").deliver_to(recipient)` is the same as a message to the actor
//!   [`Etcd`](crate::Etcd).

mod campaign;
mod candidate_list;
mod leaders;
mod leadership;

use std::fmt;

use bytes::Bytes;

pub use campaign::{Campaign, CandidateEvent};
pub use leaders::{Leader, LeaderEvent, Leaders, ObserveLeaders, SubscribeLeaders, leaders};
pub use leadership::Leadership;

pub use super::{
    lock_queue::{ClaimHandle, Ownership},
    ownership_lost::OwnershipLost,
    subscription::Subscription,
};
use super::{
    lock_queue::{LockQueue, queue_prefix},
    session::Session,
};
use crate::{
    client::Client,
    error::{Error, Result},
    request::IntoBytes,
};

impl Session {
    /// Returns the election with this name.
    pub fn election(&self, name: impl IntoBytes) -> Election {
        Election::new(self, name)
    }
}

impl Client {
    /// Returns all changes of the leader of an election, starting with the current state. Needs no session. Read it as
    /// a stream, or call [`deliver_to`](Leaders::deliver_to) to send the events to an actor.
    pub fn leaders(&self, name: impl IntoBytes) -> Leaders {
        Leaders::new(self.clone(), queue_prefix(&name.into_bytes()))
    }

    /// Returns the current leader of an election, or `None` if there is none. Fails as any read does.
    pub async fn leader(&self, name: impl IntoBytes) -> Result<Option<Leader>> {
        current_leader(self, &queue_prefix(&name.into_bytes())).await
    }
}

/// An election in which one session can be a candidate.
#[derive(Clone)]
pub struct Election {
    queue: LockQueue,
}

impl Election {
    /// Returns the election with this name, with this session as a candidate.
    pub fn new(session: &Session, name: impl IntoBytes) -> Self {
        Self {
            queue: LockQueue::new(session, &name.into_bytes()),
        }
    }

    /// Campaigns with a value that every client can read while this candidate leads. Await the request to get a
    /// [`Leadership`], or call [`deliver_to`](Campaign::deliver_to) to campaign on behalf of an actor.
    pub fn campaign(&self, value: impl IntoBytes) -> Campaign {
        Campaign::new(self.queue.clone(), value.into_bytes())
    }

    /// Takes over a leadership that another session won before a restart of its process, given its key and its token.
    /// No other candidate leads in between. Returns `None` if that leadership was lost: campaign again.
    ///
    /// Works until the lease of the former session expires. The leadership is then bound to this session, and the former
    /// session has lost it. If this fails or is dropped before it returns, the leadership may already be bound to this
    /// session: call it again, or close the session. Fails with
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the token is not positive or the key does
    /// not belong to this election, and with [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) if this session
    /// is lost.
    pub async fn resume(
        &self,
        key: impl IntoBytes,
        token: i64,
        value: impl IntoBytes,
    ) -> Result<Option<Leadership>> {
        let (key, value) = (key.into_bytes(), value.into_bytes());
        if !key.starts_with(&self.queue.prefix) {
            return Err(Error::invalid("the key does not belong to this election"));
        }
        // A key that does not exist has create revision zero: the transaction would create it.
        if token <= 0 {
            return Err(Error::invalid("the token must be above zero"));
        }
        let Some(entry) = self.queue.take_over(key, token, value).await? else {
            return Ok(None);
        };
        // The key may belong to a candidate that was not the leader.
        entry.wait_until_first().await?;
        Ok(Some(Leadership::new(entry)))
    }

    /// Returns the current leader, or `None` if there is none. Fails as any read does.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        current_leader(&self.queue.client, &self.queue.prefix).await
    }

    /// Returns all changes of the leader, starting with the current state: each leader, each new value of a leader, and
    /// each time without a leader.
    pub fn observe(&self) -> Leaders {
        Leaders::new(self.queue.client.clone(), self.queue.prefix.clone())
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("prefix", &self.queue.prefix)
            .finish_non_exhaustive()
    }
}

async fn current_leader(client: &Client, prefix: &Bytes) -> Result<Option<Leader>> {
    let oldest = client.get(prefix.clone()).prefix();
    let oldest = oldest.first_by_create_revision().await?;
    Ok(oldest.first().map(Leader::from))
}
