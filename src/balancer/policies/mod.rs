//! Policies that choose the member for each request. One file per policy.

use std::{fmt, sync::Arc};

use crate::connection::{Connection, EndpointId};

mod leader_first;
mod pinned;
mod power_of_two;
mod round_robin;

pub use leader_first::LeaderFirst;
pub use pinned::Pinned;
pub use power_of_two::PowerOfTwo;
pub use round_robin::RoundRobin;

/// Chooses among the ready members. Called on the caller's task for every request, so it must be fast and must not
/// block.
///
/// ```
/// use actix_etcd::balancer::{BalancePolicy, ReadyEndpoints};
///
/// #[derive(Debug)]
/// struct FirstReady;
///
/// impl BalancePolicy for FirstReady {
///     fn pick(&self, _: &ReadyEndpoints<'_>) -> usize {
///         0
///     }
/// }
/// ```
pub trait BalancePolicy: Send + Sync + fmt::Debug + 'static {
    /// Returns the index of the chosen candidate. There is always at least one candidate; an index that is out of range
    /// selects the first.
    fn pick(&self, candidates: &ReadyEndpoints<'_>) -> usize;

    /// Returns which endpoints to keep connected. Default: [`ConnectionMode::All`].
    fn connection_mode(&self) -> ConnectionMode {
        ConnectionMode::All
    }

    /// Returns whether all members are probed regularly, so that [`ReadyEndpoint::is_leader`] stays up to date.
    /// Default: `false`.
    fn follows_leader(&self) -> bool {
        false
    }
}

/// Which endpoints a policy keeps connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionMode {
    /// All endpoints.
    All,
    /// One endpoint: the client connects to all, keeps the first that is ready until it fails, and disconnects the
    /// others.
    Single,
}

/// The endpoints that are ready for a request: the candidates of a [`BalancePolicy`].
#[derive(Debug, Clone, Copy)]
pub struct ReadyEndpoints<'a> {
    connections: &'a [Arc<Connection>],
    /// Whether no ready endpoint is missing.
    complete: bool,
}

impl<'a> ReadyEndpoints<'a> {
    /// Creates the candidates of a request that every ready endpoint can serve.
    pub(crate) fn all(connections: &'a [Arc<Connection>]) -> Self {
        Self {
            connections,
            complete: true,
        }
    }

    /// Creates the candidates of a request that some ready endpoints cannot serve.
    pub(crate) fn some(connections: &'a [Arc<Connection>]) -> Self {
        Self {
            connections,
            complete: false,
        }
    }

    /// Returns whether these are all ready endpoints. If not, the others cannot serve this request: for example, the
    /// copy of a late request goes to another member. A policy that remembers the member it chose should remember
    /// only a choice among all.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the number of endpoints, which is at least one.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns the endpoint at this index, or `None` if the index is out of range.
    pub fn get(&self, index: usize) -> Option<ReadyEndpoint<'a>> {
        self.connections
            .get(index)
            .map(|connection| ReadyEndpoint(connection))
    }

    /// Iterates over the endpoints, in the order in which the client lists them.
    pub fn iter(&self) -> impl Iterator<Item = ReadyEndpoint<'a>> + 'a {
        let connections = self.connections.iter();
        connections.map(|connection| ReadyEndpoint(connection))
    }
}

/// An endpoint that is ready for a request.
#[derive(Debug, Clone, Copy)]
pub struct ReadyEndpoint<'a>(&'a Connection);

impl ReadyEndpoint<'_> {
    /// Returns the endpoint in its normalized form, for example `http://10.0.0.1:2379`.
    pub fn endpoint(&self) -> &str {
        self.0.endpoint.as_str()
    }

    /// Returns the number of requests and streams that are open on the connection.
    pub fn in_flight(&self) -> usize {
        self.0.channel.open_streams()
    }

    /// Returns whether the member was the leader when it was last probed. See [`BalancePolicy::follows_leader`].
    pub fn is_leader(&self) -> bool {
        let status = self.0.health().status;
        status.is_some_and(|status| status.is_leader())
    }

    fn id(self) -> EndpointId {
        self.0.id
    }
}
