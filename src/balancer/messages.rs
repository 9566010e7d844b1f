//! Messages of the [`BalancerActor`](super::BalancerActor).

use std::time::Duration;

use actix::{Message, Recipient};
use tokio::sync::{broadcast, oneshot};

use super::ConnectivityChange;
use crate::transport::Endpoint;

/// Replaces the endpoints: new ones are connected, missing ones drained, the others stay as they are.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct UpdateEndpoints {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) source: EndpointSource,
}

/// Origin of a list of endpoints.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EndpointSource {
    /// The user. The endpoints become the seeds as well.
    User,
    /// The cluster's member list. Ignored if the user has set other endpoints since `seeds_version`.
    MemberList { seeds_version: u64 },
}

/// Waits for a member that accepts requests. The sender is dropped without a value if the balancer crashes or stops.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct AwaitReady {
    pub(crate) ready: oneshot::Sender<()>,
    /// Whether a member without leader is enough.
    pub(crate) leaderless: bool,
}

/// Connects an endpoint for a request that names it, even if the policy would leave it idle.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ConnectEndpoint(pub(crate) Endpoint);

/// Returns a receiver of all later connectivity changes.
#[derive(Debug, Message)]
#[rtype(result = "broadcast::Receiver<ConnectivityChange>")]
pub(crate) struct SubscribeToChanges;

/// Sends all later connectivity changes to an actor.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SendChangesTo(pub(crate) Recipient<ConnectivityChange>);

/// Stops the balancer and closes every connection. Requests in flight have `grace` to finish.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct BalancerShutdown {
    pub(crate) grace: Duration,
}

/// Sends `ReconnectSooner` to all connections if calls still wait for a ready member.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct SpeedUpReconnects;

/// The time for which requests keep an endpoint connected by naming it may be over.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct NamedEndpointsExpired;

/// Checks the members that carry streams, and schedules the next check.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct CheckStreams;

/// Makes the connection actor of an endpoint panic. Returns whether it did.
#[cfg(feature = "test-faults")]
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub(crate) struct CrashConnection(pub(crate) Endpoint);

/// Ends the time for which named endpoints stay connected.
#[cfg(feature = "test-faults")]
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ExpireNamedEndpoints;
