//! The snapshot of all endpoints that the balancer publishes.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use super::ConnectivityState;
use crate::{
    connection::{ClusterView, Connection, EndpointId, OtherMembers},
    error::{Error, ErrorKind, Outcome},
    transport::Endpoint,
};

/// Immutable snapshot of all endpoints, replaced as a whole after each change.
#[derive(Debug, Default)]
pub(crate) struct ReadySet {
    /// Connections that accept all requests, in the order of the endpoints.
    pub(crate) ready: Vec<Arc<Connection>>,
    /// Connections in the state `NoLeader`, which accept serializable reads only.
    pub(crate) leaderless: Vec<Arc<Connection>>,
    /// Every endpoint.
    pub(crate) views: Vec<EndpointView>,
    /// Endpoints set by the user. Tried again if no member of the cluster's member list responds.
    pub(crate) seeds: Arc<[Endpoint]>,
    /// Number of times the user has set the endpoints.
    pub(crate) seeds_version: u64,
    /// Whether the client was shut down.
    pub(crate) closed: bool,
}

/// Last known state of one endpoint.
#[derive(Debug, Clone)]
pub(crate) struct EndpointView {
    pub(crate) id: EndpointId,
    pub(crate) endpoint: Endpoint,
    pub(crate) state: ConnectivityState,
    /// Time of the last change of `state`.
    pub(crate) since: Instant,
    /// Last failure; `None` once the endpoint is ready.
    pub(crate) error: Option<Error>,
    /// The connection to use, in the states `Ready` and `NoLeader`.
    pub(crate) connection: Option<Arc<Connection>>,
}

impl EndpointView {
    fn responds_without_leader(&self) -> bool {
        let error = self.error.as_ref();
        self.state == ConnectivityState::NoLeader
            && error.is_some_and(|error| error.kind() == ErrorKind::NoLeader)
    }

    fn is_of_other_cluster(&self) -> bool {
        let error = self.error.as_ref();
        error.is_some_and(|error| error.kind() == ErrorKind::ClusterChanged)
    }
}

impl ReadySet {
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        let views = self.views.iter();
        views.map(|view| view.endpoint.clone()).collect()
    }

    /// Returns the error of a call for which no member became ready in time.
    pub(crate) fn none_ready(&self) -> Error {
        let leaderless = self.views.iter().any(EndpointView::responds_without_leader);
        let foreign =
            !self.views.is_empty() && self.views.iter().all(EndpointView::is_of_other_cluster);
        let (kind, summary) = if leaderless {
            (
                ErrorKind::Unavailable,
                "the reachable members have no leader; an election may be running, or the quorum may be lost",
            )
        } else if foreign {
            let summary = "every endpoint leads to another cluster";
            (ErrorKind::ClusterChanged, summary)
        } else {
            (ErrorKind::Unavailable, "no endpoint accepts requests")
        };
        let reason = format!("{summary} ({})", self.endpoint_failures());
        Error::new(kind, Outcome::NotSent, reason)
    }

    /// Returns each endpoint with its last failure, or with its state if it has not failed.
    pub(crate) fn endpoint_failures(&self) -> String {
        let failures: Vec<String> = self
            .views
            .iter()
            .map(|view| match &view.error {
                Some(error) => format!("{}: {}", view.endpoint, error.brief()),
                None => format!("{}: {}", view.endpoint, view.state),
            })
            .collect();
        failures.join("; ")
    }

    /// Returns whether a ready member other than `member` refuses no tokens.
    pub(crate) fn accepts_tokens_without(&self, member: EndpointId) -> bool {
        let mut others = self.ready.iter().filter(|other| other.id != member);
        others.any(|other| !other.refuses_tokens())
    }

    fn connected_except(&self, except: EndpointId) -> impl Iterator<Item = &Arc<Connection>> {
        self.ready
            .iter()
            .chain(&self.leaderless)
            .filter(move |connection| connection.id != except)
    }
}

/// Holds the current [`ReadySet`].
#[derive(Debug, Default)]
pub(crate) struct ReadySetCell(ArcSwap<ReadySet>);

impl ReadySetCell {
    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<ReadySet>> {
        self.0.load()
    }

    pub(crate) fn load_full(&self) -> Arc<ReadySet> {
        self.0.load_full()
    }

    pub(super) fn publish(&self, set: ReadySet) {
        self.0.store(Arc::new(set));
    }
}

impl ClusterView for ReadySetCell {
    fn other_members(&self, except: EndpointId) -> OtherMembers {
        let set = self.load();
        let mut ready = set.ready.iter();
        OtherMembers {
            statuses: set
                .connected_except(except)
                .flat_map(|connection| connection.health().statuses())
                .collect(),
            any_ready: ready.any(|connection| connection.id != except),
        }
    }

    fn others_responded_since(&self, except: EndpointId, since: Instant) -> bool {
        self.load()
            .connected_except(except)
            .any(|connection| connection.channel.wire_log().last_received() > since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Verdict, foreign_cluster_error};

    fn view(endpoint: &str, state: ConnectivityState, error: Option<Error>) -> EndpointView {
        EndpointView {
            id: EndpointId(0),
            endpoint: Endpoint::parse(endpoint).unwrap(),
            state,
            since: Instant::now(),
            error,
            connection: None,
        }
    }

    fn refused() -> Error {
        let kind = ErrorKind::Unavailable;
        Error::new(kind, Outcome::NotSent, "connection refused")
    }

    #[test]
    fn unavailable_error_lists_every_endpoint() {
        let set = ReadySet {
            views: vec![
                view("a:1", ConnectivityState::TransientFailure, Some(refused())),
                view("b:1", ConnectivityState::Connecting, None),
            ],
            ..ReadySet::default()
        };
        let error = set.none_ready();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.outcome(), Outcome::NotSent);
        assert_eq!(
            error.brief(),
            "no endpoint accepts requests (http://a:1: connection refused; http://b:1: connecting)"
        );
    }

    #[test]
    fn foreign_endpoints_are_reported_as_cluster_change() {
        let foreign = || Some(foreign_cluster_error(1, 2));
        let failed = |endpoint, error| view(endpoint, ConnectivityState::TransientFailure, error);
        let mut set = ReadySet {
            views: vec![failed("a:1", foreign()), failed("b:1", foreign())],
            ..ReadySet::default()
        };
        assert_eq!(set.none_ready().kind(), ErrorKind::ClusterChanged);
        set.views.push(failed("c:1", Some(refused())));
        assert_eq!(set.none_ready().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn unavailable_error_names_missing_leader() {
        let (kind, reason) = (ErrorKind::NoLeader, Verdict::NoLeader.reason());
        let leaderless = Error::new(kind, Outcome::NotSent, reason);
        let set = ReadySet {
            views: vec![
                view("a:1", ConnectivityState::TransientFailure, Some(refused())),
                view("b:1", ConnectivityState::NoLeader, Some(leaderless)),
            ],
            ..ReadySet::default()
        };
        let error = set.none_ready();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let reason = error.brief();
        assert!(
            reason.starts_with("the reachable members have no leader"),
            "{reason}"
        );
        assert!(
            reason.contains("http://a:1: connection refused"),
            "{reason}"
        );
        assert!(
            reason.contains("http://b:1: the member has no leader"),
            "{reason}"
        );
    }
}
