//! Which endpoints should have a connection now. Pure.

use super::Connects;
use crate::connection::{ConnectivityState, EndpointId};

/// What an endpoint's connection should be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Connect if idle.
    Connect(EndpointId),
    /// Close gracefully and rest.
    Rest(EndpointId),
}

/// With [`Connects::One`], all are dialled until one is up; it is kept and the others are closed.
pub(crate) fn demands(
    connects: Connects,
    states: impl Iterator<Item = (EndpointId, ConnectivityState)> + Clone,
) -> Vec<Demand> {
    let kept = match connects {
        Connects::All => None,
        Connects::One => states
            .clone()
            .find(|(_, state)| *state == ConnectivityState::Ready),
    };
    match kept {
        None => states
            .filter(|(_, state)| *state == ConnectivityState::Idle)
            .map(|(id, _)| Demand::Connect(id))
            .collect(),
        Some((kept, _)) => states
            .filter(|(id, state)| {
                let resting =
                    matches!(state, ConnectivityState::Idle | ConnectivityState::Shutdown);
                *id != kept && !resting
            })
            .map(|(id, _)| Demand::Rest(id))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConnectivityState::{Connecting, Idle, NoLeader, Ready, TransientFailure};

    fn ask(connects: Connects, states: &[ConnectivityState]) -> Vec<Demand> {
        let states = states
            .iter()
            .zip(0..)
            .map(|(state, id)| (EndpointId(id), *state));
        demands(connects, states)
    }

    #[test]
    fn all_endpoints_are_connected_where_the_policy_wants_all() {
        assert_eq!(
            ask(Connects::All, &[Idle, Ready, Connecting]),
            [Demand::Connect(EndpointId(0))]
        );
    }

    #[test]
    fn the_first_one_up_is_kept_and_the_others_rest() {
        assert_eq!(
            ask(
                Connects::One,
                &[Connecting, Ready, Ready, TransientFailure, Idle]
            ),
            [0, 2, 3].map(|id| Demand::Rest(EndpointId(id)))
        );
    }

    #[test]
    fn when_the_kept_one_fails_all_are_dialled_again() {
        assert_eq!(
            ask(Connects::One, &[Idle, TransientFailure, Idle]),
            [0, 2].map(|id| Demand::Connect(EndpointId(id)))
        );
        assert_eq!(
            ask(Connects::One, &[NoLeader, Idle]),
            [Demand::Connect(EndpointId(1))]
        );
    }
}
