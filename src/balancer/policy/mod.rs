//! Policies: which of the ready members takes a request. A file each.

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

/// Chooses among the members that are ready. Called on the caller's task for every request: it should be quick
/// and must not block.
///
/// ```
/// use actix_etcd::{balancer::BalancePolicy, ReadyEndpoints};
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
    /// The index of the candidate to take. There is at least one; an index out of range means the first.
    fn pick(&self, candidates: &ReadyEndpoints<'_>) -> usize;

    /// Which endpoints to keep connected. Default: all of them.
    fn connects(&self) -> ConnectionMode {
        ConnectionMode::All
    }

    /// Whether members should be asked now and then who leads. Default: no.
    fn follows_leader(&self) -> bool {
        false
    }
}

/// Which endpoints a policy keeps connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionMode {
    /// Every endpoint.
    All,
    /// One: all are dialled, the first one up is kept until it fails.
    Single,
}

/// The members that can take a request now.
#[derive(Debug, Clone, Copy)]
pub struct ReadyEndpoints<'a>(&'a [Arc<Connection>]);

impl<'a> ReadyEndpoints<'a> {
    pub(crate) fn new(connections: &'a [Arc<Connection>]) -> Self {
        Self(connections)
    }

    /// How many there are; at least one.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<ReadyEndpoint<'a>> {
        self.0
            .get(index)
            .map(|connection| ReadyEndpoint(connection))
    }

    /// Each of them, in the order of the endpoints.
    pub fn iter(&self) -> impl Iterator<Item = ReadyEndpoint<'a>> + 'a {
        self.0.iter().map(|connection| ReadyEndpoint(connection))
    }
}

/// A member that can take a request now.
#[derive(Debug, Clone, Copy)]
pub struct ReadyEndpoint<'a>(&'a Connection);

impl ReadyEndpoint<'_> {
    /// The endpoint in its normal form.
    pub fn endpoint(&self) -> &str {
        self.0.endpoint.as_str()
    }

    /// Requests and streams that are open on its connection.
    pub fn in_flight(&self) -> usize {
        self.0.channel.open_streams()
    }

    /// Whether it led the cluster when it was last looked at.
    pub fn is_leader(&self) -> bool {
        let seen = self.0.health().sighting;
        seen.is_some_and(|seen| seen.leader != 0 && seen.leader == seen.member)
    }

    fn id(self) -> EndpointId {
        self.0.id
    }
}
