//! The state of a singleton on one node.

use actix::{Actor, Addr};

use crate::error::Error;

/// The state of a singleton on this node.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SingletonState {
    /// This node campaigns. The actor runs on another node, or on none.
    Waiting,
    /// The campaign of this node failed with this error, for example because the user may not write the keys, or because
    /// another key blocks the election. The campaign is repeated, with delays of up to 10 s. The error stays visible until a
    /// campaign has lasted for a second.
    Failing(Error),
    /// This node is not [healthy](super::SingletonBuilder::healthy_while), so it does not campaign.
    Unhealthy,
    /// The actor runs on this node.
    Running,
    /// The actor runs on this node, but is about to end.
    Stopping,
    /// The singleton was stopped on this node, or its client was shut down. This is the last state.
    Stopped,
}

/// The state with the address of the actor.
pub(super) enum LocalState<A: Actor> {
    Waiting,
    Failing(Error),
    Unhealthy,
    Running(Addr<A>),
    Stopping,
    Stopped,
}

impl<A: Actor> LocalState<A> {
    pub(super) fn addr(&self) -> Option<Addr<A>> {
        match self {
            Self::Running(addr) => Some(addr.clone()),
            _ => None,
        }
    }

    pub(super) fn is_here(&self) -> bool {
        matches!(self, Self::Running(_) | Self::Stopping)
    }

    pub(super) fn is_stopped(&self) -> bool {
        matches!(self, Self::Stopped)
    }

    pub(super) fn to_public(&self) -> SingletonState {
        match self {
            Self::Waiting => SingletonState::Waiting,
            Self::Failing(error) => SingletonState::Failing(error.clone()),
            Self::Unhealthy => SingletonState::Unhealthy,
            Self::Running(_) => SingletonState::Running,
            Self::Stopping => SingletonState::Stopping,
            Self::Stopped => SingletonState::Stopped,
        }
    }
}

impl<A: Actor> Clone for LocalState<A> {
    fn clone(&self) -> Self {
        match self {
            Self::Waiting => Self::Waiting,
            Self::Failing(error) => Self::Failing(error.clone()),
            Self::Unhealthy => Self::Unhealthy,
            Self::Running(addr) => Self::Running(addr.clone()),
            Self::Stopping => Self::Stopping,
            Self::Stopped => Self::Stopped,
        }
    }
}
