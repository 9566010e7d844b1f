//! Decides which endpoints are connected. Pure.

use super::ConnectionMode;
use crate::connection::{ConnectivityState, EndpointId};

/// The endpoint to keep and the changes that lead there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectionPlan {
    /// The endpoint that is kept connected with [`ConnectionMode::Single`], once one is ready.
    pub(super) kept: Option<EndpointId>,
    pub(super) changes: Vec<ConnectionChange>,
}

/// A command for one endpoint's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionChange {
    Connect(EndpointId),
    Disconnect(EndpointId),
}

/// The part of an endpoint's state on which the plan depends.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndpointSummary {
    pub(super) id: EndpointId,
    pub(super) state: ConnectivityState,
    /// Whether requests name this endpoint, so that no other can serve them.
    pub(super) named: bool,
}

/// Returns which endpoints to connect and disconnect.
///
/// With [`ConnectionMode::Single`], all endpoints are connected until one is ready. That one is kept until it fails,
/// and the others are disconnected unless requests name them.
pub(super) fn plan_connections(
    mode: ConnectionMode,
    kept: Option<EndpointId>,
    endpoints: &[EndpointSummary],
) -> ConnectionPlan {
    let kept = match mode {
        ConnectionMode::All => None,
        ConnectionMode::Single => endpoints
            .iter()
            .filter(|endpoint| endpoint.state == ConnectivityState::Ready)
            .min_by_key(|endpoint| (Some(endpoint.id) != kept, endpoint.named))
            .map(|endpoint| endpoint.id),
    };
    let change = |endpoint: &EndpointSummary| {
        let needed = kept.is_none_or(|kept| kept == endpoint.id) || endpoint.named;
        match endpoint.state {
            ConnectivityState::Idle => needed.then_some(ConnectionChange::Connect(endpoint.id)),
            ConnectivityState::Shutdown => None,
            ConnectivityState::Connecting
            | ConnectivityState::Ready
            | ConnectivityState::NoLeader
            | ConnectivityState::TransientFailure => {
                (!needed).then_some(ConnectionChange::Disconnect(endpoint.id))
            }
        }
    };
    ConnectionPlan {
        kept,
        changes: endpoints.iter().filter_map(change).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConnectivityState::{Connecting, Idle, NoLeader, Ready, TransientFailure};

    fn endpoints(states: &[ConnectivityState], named: &[u64]) -> Vec<EndpointSummary> {
        let endpoints = states.iter().zip(0..).map(|(state, id)| EndpointSummary {
            id: EndpointId(id),
            state: *state,
            named: named.contains(&id),
        });
        endpoints.collect()
    }

    fn changes(mode: ConnectionMode, states: &[ConnectivityState]) -> Vec<ConnectionChange> {
        plan_connections(mode, None, &endpoints(states, &[])).changes
    }

    fn plan(kept: Option<EndpointId>, changes: Vec<ConnectionChange>) -> ConnectionPlan {
        ConnectionPlan { kept, changes }
    }

    #[test]
    fn mode_all_connects_every_endpoint() {
        assert_eq!(
            changes(ConnectionMode::All, &[Idle, Ready, Connecting]),
            [ConnectionChange::Connect(EndpointId(0))]
        );
    }

    #[test]
    fn first_ready_endpoint_is_kept() {
        assert_eq!(
            changes(
                ConnectionMode::Single,
                &[Connecting, Ready, Ready, TransientFailure, Idle]
            ),
            [0, 2, 3].map(|id| ConnectionChange::Disconnect(EndpointId(id)))
        );
    }

    #[test]
    fn all_endpoints_are_connected_when_kept_one_fails() {
        assert_eq!(
            changes(ConnectionMode::Single, &[Idle, TransientFailure, Idle]),
            [0, 2].map(|id| ConnectionChange::Connect(EndpointId(id)))
        );
        assert_eq!(
            changes(ConnectionMode::Single, &[NoLeader, Idle]),
            [ConnectionChange::Connect(EndpointId(1))]
        );
    }

    #[test]
    fn named_endpoint_is_connected_temporarily() {
        let mode = ConnectionMode::Single;
        let kept = Some(EndpointId(1));
        let named = endpoints(&[Idle, Ready, Idle], &[0]);
        let connect = vec![ConnectionChange::Connect(EndpointId(0))];
        assert_eq!(plan_connections(mode, kept, &named), plan(kept, connect));
        let both_ready = endpoints(&[Ready, Ready, Idle], &[0]);
        let unchanged = plan(kept, vec![]);
        assert_eq!(plan_connections(mode, kept, &both_ready), unchanged);
        assert_eq!(plan_connections(mode, None, &both_ready), unchanged);
        let expired = endpoints(&[Ready, Ready, Idle], &[]);
        let disconnect = vec![ConnectionChange::Disconnect(EndpointId(0))];
        assert_eq!(
            plan_connections(mode, kept, &expired),
            plan(kept, disconnect)
        );
    }

    #[test]
    fn named_endpoint_replaces_failed_one() {
        let failed = endpoints(&[Ready, TransientFailure], &[0]);
        let plan = plan_connections(ConnectionMode::Single, Some(EndpointId(1)), &failed);
        assert_eq!(plan.kept, Some(EndpointId(0)));
        assert_eq!(plan.changes, [ConnectionChange::Disconnect(EndpointId(1))]);
    }
}
