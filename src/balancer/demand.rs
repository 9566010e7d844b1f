//! Which endpoints should have a connection now. Pure.

use super::ConnectionMode;
use crate::connection::{ConnectivityState, EndpointId};

/// What an endpoint's connection should be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Connect if idle.
    Connect(EndpointId),
    /// Close gracefully and rest.
    Rest(EndpointId),
}

/// An endpoint, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) id: EndpointId,
    pub(crate) state: ConnectivityState,
    /// Requests name it, so that no other will do.
    pub(crate) named: bool,
}

/// With [`ConnectionMode::Single`], all are dialled until one is up; it is kept until it fails, and the others are closed, but for
/// those that requests name. Tells who is kept, too.
pub(crate) fn demands(
    connects: ConnectionMode,
    kept: Option<EndpointId>,
    endpoints: &[Known],
) -> (Option<EndpointId>, Vec<Demand>) {
    let kept = match connects {
        ConnectionMode::All => None,
        ConnectionMode::Single => endpoints
            .iter()
            .filter(|known| known.state == ConnectivityState::Ready)
            .min_by_key(|known| (Some(known.id) != kept, known.named))
            .map(|known| known.id),
    };
    let demands = endpoints.iter().filter_map(|known| {
        let wanted = kept.is_none_or(|kept| kept == known.id) || known.named;
        match known.state {
            ConnectivityState::Idle => wanted.then_some(Demand::Connect(known.id)),
            ConnectivityState::Shutdown => None,
            ConnectivityState::Connecting
            | ConnectivityState::Ready
            | ConnectivityState::NoLeader
            | ConnectivityState::TransientFailure => (!wanted).then_some(Demand::Rest(known.id)),
        }
    });
    (kept, demands.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConnectivityState::{Connecting, Idle, NoLeader, Ready, TransientFailure};

    fn known(states: &[ConnectivityState], named: &[u64]) -> Vec<Known> {
        let known = states.iter().zip(0..).map(|(state, id)| Known {
            id: EndpointId(id),
            state: *state,
            named: named.contains(&id),
        });
        known.collect()
    }

    fn ask(connects: ConnectionMode, states: &[ConnectivityState]) -> Vec<Demand> {
        demands(connects, None, &known(states, &[])).1
    }

    #[test]
    fn all_endpoints_are_connected_where_the_policy_wants_all() {
        assert_eq!(
            ask(ConnectionMode::All, &[Idle, Ready, Connecting]),
            [Demand::Connect(EndpointId(0))]
        );
    }

    #[test]
    fn the_first_one_up_is_kept_and_the_others_rest() {
        assert_eq!(
            ask(
                ConnectionMode::Single,
                &[Connecting, Ready, Ready, TransientFailure, Idle]
            ),
            [0, 2, 3].map(|id| Demand::Rest(EndpointId(id)))
        );
    }

    #[test]
    fn when_the_kept_one_fails_all_are_dialled_again() {
        assert_eq!(
            ask(ConnectionMode::Single, &[Idle, TransientFailure, Idle]),
            [0, 2].map(|id| Demand::Connect(EndpointId(id)))
        );
        assert_eq!(
            ask(ConnectionMode::Single, &[NoLeader, Idle]),
            [Demand::Connect(EndpointId(1))]
        );
    }

    #[test]
    fn one_that_is_named_is_connected_beside_the_kept_one_and_rests_afterwards() {
        let kept = Some(EndpointId(1));
        let named = known(&[Idle, Ready, Idle], &[0]);
        let connect = vec![Demand::Connect(EndpointId(0))];
        assert_eq!(
            demands(ConnectionMode::Single, kept, &named),
            (kept, connect)
        );
        let both = known(&[Ready, Ready, Idle], &[0]);
        assert_eq!(demands(ConnectionMode::Single, kept, &both), (kept, vec![]));
        assert_eq!(demands(ConnectionMode::Single, None, &both), (kept, vec![]));
        let over = known(&[Ready, Ready, Idle], &[]);
        let rest = vec![Demand::Rest(EndpointId(0))];
        assert_eq!(demands(ConnectionMode::Single, kept, &over), (kept, rest));
    }

    #[test]
    fn one_that_is_named_takes_over_when_the_kept_one_fails() {
        let lost = known(&[Ready, TransientFailure], &[0]);
        let (kept, demands) = demands(ConnectionMode::Single, Some(EndpointId(1)), &lost);
        assert_eq!(kept, Some(EndpointId(0)));
        assert_eq!(demands, [Demand::Rest(EndpointId(1))]);
    }
}
