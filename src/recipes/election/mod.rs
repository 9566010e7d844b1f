//! An election: one candidate leads at a time, and every client can read which one.
//!
//! Keys have the layout of the Go client's `concurrency` package, so Go programs and `etcdctl elect` take part in the
//! same election. As in Go, every older key under `<name>/` blocks a candidate: do not put other keys there, and do not
//! nest names. A campaign behind such a key fails with [`ErrorKind::LockBlocked`](crate::ErrorKind::LockBlocked). Two
//! leaders are possible [under the same conditions as two owners of a lock](super::mutex#when-two-owners-are-possible),
//! and the same features protect against that.
//!
//! [`Session::election`] uses a session of yours, whose end also ends the election. [`Client::election`] opens a session
//! of its own that heals: after an outage that has cost the leadership, campaign again.
//!
//! [`Election::is_leader`] returns whether this candidate leads, without a request, and
//! [`Campaign::healthy_while`] gives up the leadership of an application that is not healthy.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//! use actix_etcd::recipes::election::LeaderEvent;
//!
//! let election = etcd.election("jobs").ttl(Duration::from_secs(10)).await?;
//! let leadership = election.campaign("10.0.0.1").await?;
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
mod election_builder;
mod leader_monitor;
mod leaders;
mod leadership;

use std::fmt;

use bytes::Bytes;

pub use campaign::{Campaign, CandidateEvent};
pub use election_builder::ElectionBuilder;
pub(in crate::recipes) use leader_monitor::HealthCheck;
pub use leaders::{Leader, LeaderEvent, Leaders, ObserveLeaders, SubscribeLeaders, leaders};
pub use leadership::Leadership;

pub use super::{
    lock_queue::{ClaimHandle, Ownership},
    ownership_lost::OwnershipLost,
};
use super::{
    lock_queue::{LockQueue, QueueRule, check_prefix, is_contender, queue_prefix},
    session::Session,
};
pub use crate::client::Subscription;
use crate::{
    client::Client,
    error::{Error, Result},
    request::IntoBytes,
};
use leader_monitor::LeaderStatus;

impl Session {
    /// Returns the election with this name. It works until the session ends: a lost or closed session loses its
    /// leadership.
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

    /// Returns the current leader of an election, or `None` if there is none. Also returns `None` while the oldest key
    /// under `<name>/` was not put by a candidate: no candidate can lead then.
    ///
    /// Fails as any read does, and with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is
    /// empty or consists of slashes.
    pub async fn leader(&self, name: impl IntoBytes) -> Result<Option<Leader>> {
        current_leader(self, &queue_prefix(&name.into_bytes())).await
    }
}

/// An election in which one session can be a candidate.
#[derive(Clone)]
pub struct Election {
    queue: LockQueue,
    status: LeaderStatus,
}

impl Election {
    /// Returns the election with this name, with this session as a candidate.
    pub fn new(session: &Session, name: impl IntoBytes) -> Self {
        Self {
            queue: LockQueue::new(session, &name.into_bytes(), QueueRule::Exclusive),
            status: LeaderStatus::default(),
        }
    }

    /// Returns whether a candidate of this election, or of its clones, leads now. Sends no request, so it can be called
    /// before every step of the work.
    ///
    /// It is `false` from a moment before the lease ends until the lease is renewed, as soon as the key of the leader
    /// was deleted, and as soon as the leader starts to resign.
    pub fn is_leader(&self) -> bool {
        self.status.is_leader()
    }

    /// Campaigns with a value that every client can read while this candidate leads. Await the request to get a
    /// [`Leadership`], or call [`deliver_to`](Campaign::deliver_to) to campaign on behalf of an actor.
    pub fn campaign(&self, value: impl IntoBytes) -> Campaign {
        Campaign::new(self.queue.clone(), value.into_bytes(), self.status.clone())
    }

    /// Takes over a leadership that another session won before a restart of its process, given its key and its token.
    /// No other candidate leads in between. Returns `None` if that leadership was lost: campaign again.
    ///
    /// Works until the lease of the former session expires, also if that session was
    /// [detached](Session::detach). The leadership is then bound to this session, and the former session has lost it.
    /// If this fails without a response, or is dropped before it returns, the leadership may be resigned. Fails with
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
        if !key.starts_with(&self.queue.keys.prefix) {
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
        entry.wait_until_admitted().await?;
        Leadership::new(entry, self.status.clone(), None).map(Some)
    }

    /// Returns the current leader, as [`Client::leader`] does.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        current_leader(&self.queue.client, &self.queue.keys.prefix).await
    }

    /// Returns all changes of the leader, starting with the current state: each leader, each new value of a leader, and
    /// each time without a leader.
    pub fn observe(&self) -> Leaders {
        Leaders::new(self.queue.client.clone(), self.queue.keys.prefix.clone())
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("prefix", &self.queue.keys.prefix)
            .finish_non_exhaustive()
    }
}

async fn current_leader(client: &Client, prefix: &Bytes) -> Result<Option<Leader>> {
    check_prefix(prefix)?;
    let oldest = client.get(prefix.clone()).prefix();
    let oldest = oldest.first_by_create_revision().await?;
    let leader = oldest.first().map(Leader::from);
    Ok(leader.filter(|leader| is_contender(prefix, &leader.key, leader.lease)))
}
