//! Requests that name their member: they go over its connection, wherever the others would go.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::Caller;
use crate::{
    balancer::{
        ConnectionMode, MemberView,
        messages::{ConnectEndpoint, SubscribeToChanges},
    },
    connection::{Connection, ConnectivityState},
    error::{Error, ErrorKind, Outcome},
    transport::Endpoint,
};

impl Caller {
    /// The same, for requests to this member only. Fails if it is none of the client's.
    pub(crate) fn at(&self, endpoint: Endpoint) -> Result<Self, Error> {
        if self.view(&endpoint).is_none() {
            return Err(Error::invalid(format!(
                "{endpoint} is not among the client's endpoints"
            )));
        }
        if self.policy.connection_mode() == ConnectionMode::Single {
            self.balancer.do_send(ConnectEndpoint(endpoint.clone()));
        }
        Ok(Self {
            only: Some(endpoint),
            ..self.clone()
        })
    }

    /// The members one by one, those that are ready first. Those that were tried in vain just now are left out.
    pub(crate) fn in_turn(&self) -> Vec<Endpoint> {
        let set = self.ready.load();
        let mut members: Vec<&MemberView> = set
            .members
            .iter()
            .filter(|view| match view.state {
                ConnectivityState::TransientFailure | ConnectivityState::Shutdown => false,
                ConnectivityState::Idle
                | ConnectivityState::Connecting
                | ConnectivityState::Ready
                | ConnectivityState::NoLeader => true,
            })
            .collect();
        members.sort_by_key(|view| view.state != ConnectivityState::Ready);
        members.iter().map(|view| view.endpoint.clone()).collect()
    }

    /// A connection to this member, made if there is none and the policy would let it rest.
    pub(crate) async fn reach(
        &self,
        endpoint: Endpoint,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Error> {
        let soon = Instant::now() + self.shared.dial.connect_timeout;
        let named = self.at(endpoint)?;
        named.ready_connection(deadline.min(soon)).await
    }

    /// A connection for a stream, to none of these members; to any where no other can be reached, which forgets them.
    pub(crate) async fn connection_besides(
        &self,
        avoided: &mut Vec<Endpoint>,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Error> {
        if !avoided.is_empty() {
            for other in self.in_turn() {
                if !avoided.contains(&other)
                    && let Ok(connection) = self.reach(other, deadline).await
                {
                    return Ok(connection);
                }
            }
            avoided.clear();
        }
        self.ready_connection(deadline).await
    }

    fn view(&self, endpoint: &Endpoint) -> Option<MemberView> {
        let set = self.ready.load();
        let found = set.members.iter().find(|view| view.endpoint == *endpoint);
        found.cloned()
    }

    pub(super) fn connection_of(&self, endpoint: &Endpoint) -> Option<Arc<Connection>> {
        self.view(endpoint)?.connection
    }

    /// Waits until that member has a connection.
    pub(super) async fn await_member(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
    ) -> Result<(), Error> {
        let changes = timeout_at(deadline, self.balancer.send(SubscribeToChanges)).await;
        // Where not even the balancer answers in time, the picture as it is says why.
        let mut changes = match changes {
            Ok(changes) => Some(changes.map_err(|_| Error::shut_down())?),
            Err(_) => None,
        };
        loop {
            let Some(view) = self.view(endpoint) else {
                return Err(if self.ready.load().closed {
                    Error::shut_down()
                } else {
                    Error::invalid(format!("{endpoint} was removed from the endpoints"))
                });
            };
            if view.connection.is_some() {
                return Ok(());
            }
            // Whatever changed, and however many changes were missed: the picture is looked at again.
            let news = async {
                match &mut changes {
                    Some(changes) => drop(changes.recv().await),
                    None => std::future::pending().await,
                }
            };
            if timeout_at(deadline, news).await.is_err() {
                let text = match &view.error {
                    Some(error) => error.brief(),
                    None => format!("its connection is {}", view.state),
                };
                return Err(Error::new(ErrorKind::Unavailable, Outcome::NotSent, text)
                    .with_endpoint(endpoint.name()));
            }
            if !self.balancer.connected() {
                return Err(Error::shut_down());
            }
        }
    }
}
