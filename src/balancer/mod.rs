//! Which member gets the next request.
//!
//! The [`BalancerActor`](actor::BalancerActor) owns the connections. It hears
//! [`ConnectivityChanged`](crate::connection::ConnectivityChanged) from each of them and, after each change,
//! publishes an immutable [`ReadySet`] that every caller reads without a lock. It can be told
//! [`UpdateEndpoints`], [`AwaitReady`], [`NeedMember`], [`Suspected`](crate::connection::Suspected), [`Subscribe`],
//! [`SubscribeRecipient`] and [`Shutdown`].
//!
//! Which of the ready members is taken is a [`BalancePolicy`]'s decision, made on the caller's task.

use std::{sync::Arc, time::Duration};

use actix::{Message, Recipient};
use arc_swap::ArcSwap;
use tokio::{
    sync::{broadcast, oneshot},
    time::Instant,
};

use crate::{
    connection::{Connection, EndpointId, verdict::Others},
    error::Error,
    transport::Endpoint,
};

pub(crate) mod actor;
pub(crate) mod demand;
mod policy;
mod status;

pub use crate::connection::ConnectivityState;
pub use policy::{
    BalancePolicy, ConnectionMode, LeaderFirst, Pinned, PowerOfTwo, ReadyEndpoint, ReadyEndpoints,
    RoundRobin,
};
pub use status::{ConnectivityChange, EndpointStatus};

/// What callers know of the members: one consistent picture, replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct ReadySet {
    /// Connections that get requests, in the order of the endpoints.
    pub(crate) ready: Vec<Arc<Connection>>,
    /// Connections whose member answers but has no leader: for serializable reads.
    pub(crate) leaderless: Vec<Arc<Connection>>,
    /// Every endpoint.
    pub(crate) members: Vec<MemberView>,
    /// The endpoints the user gave: the fallback where the ones in use come from the member list.
    pub(crate) seeds: Arc<[Endpoint]>,
    /// How often the user has chosen the endpoints.
    pub(crate) choice: u64,
    /// The client has been shut down.
    pub(crate) closed: bool,
}

/// One endpoint as last heard of.
#[derive(Debug, Clone)]
pub(crate) struct MemberView {
    pub(crate) id: EndpointId,
    pub(crate) endpoint: Endpoint,
    pub(crate) state: ConnectivityState,
    pub(crate) since: Instant,
    pub(crate) error: Option<Error>,
    pub(crate) connection: Option<Arc<Connection>>,
}

impl ReadySet {
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        let members = self.members.iter();
        members.map(|member| member.endpoint.clone()).collect()
    }

    /// What is known of all members but one.
    pub(crate) fn others(&self, except: EndpointId) -> Others {
        let other = |connection: &&Arc<Connection>| connection.id != except;
        let all = self.ready.iter().chain(&self.leaderless);
        Others {
            sightings: all
                .filter(other)
                .filter_map(|connection| connection.health().sighting)
                .collect(),
            serve: self.ready.iter().any(|connection| connection.id != except),
        }
    }

    /// Whether another member has said anything since then.
    pub(crate) fn heard_others(&self, except: EndpointId, since: Instant) -> bool {
        self.ready
            .iter()
            .chain(&self.leaderless)
            .filter(|connection| connection.id != except)
            .any(|connection| connection.channel.wire_log().last_received() > since)
    }

    /// Each endpoint and its last failure, for an error that says where to look.
    pub(crate) fn complaints(&self) -> String {
        let each: Vec<String> = self
            .members
            .iter()
            .map(|member| match &member.error {
                Some(error) => format!("{}: {}", member.endpoint, error.brief()),
                None => format!("{}: {}", member.endpoint, member.state),
            })
            .collect();
        each.join("; ")
    }
}

/// The [`ReadySet`] in force.
#[derive(Debug, Default)]
pub(crate) struct ReadySetCell(ArcSwap<ReadySet>);

impl ReadySetCell {
    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<ReadySet>> {
        self.0.load()
    }

    pub(crate) fn load_full(&self) -> Arc<ReadySet> {
        self.0.load_full()
    }

    pub(crate) fn publish(&self, set: ReadySet) {
        self.0.store(Arc::new(set));
    }
}

/// Use these endpoints from now on. New ones are connected, missing ones drained, the others left as they are.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct UpdateEndpoints {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) by: By,
}

/// On whose behalf endpoints are replaced.
#[derive(Debug, Clone, Copy)]
pub(crate) enum By {
    /// The user's: they are the fallback from now on, too.
    User,
    /// The member list's, as it was asked for after that choice of the user's; void after another one.
    Sync(u64),
}

/// Tell when a member can take a request; dropped unanswered when the client ends.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct AwaitReady {
    pub(crate) ready: oneshot::Sender<()>,
    /// A member without leader will do.
    pub(crate) leaderless: bool,
}

/// A request is for this endpoint and no other: it needs a connection, even where the policy would let it rest.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct NeedMember(pub(crate) Endpoint);

/// Tell every change of connectivity to a channel of the caller's.
#[derive(Debug, Message)]
#[rtype(result = "broadcast::Receiver<ConnectivityChange>")]
pub(crate) struct Subscribe;

/// Tell every change of connectivity to an actor.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SubscribeRecipient(pub(crate) Recipient<ConnectivityChange>);

/// Close every connection, gracefully for at most that long, and end.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Shutdown {
    pub(crate) grace: Duration,
}

/// Pass a crash on to the connection of an endpoint; tells whether it panicked. For tests.
#[cfg(feature = "test-faults")]
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub(crate) struct CrashConnection(pub(crate) Endpoint);
