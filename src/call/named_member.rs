//! Requests that name their member.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::Caller;
use crate::{
    balancer::{
        ConnectionMode, EndpointView,
        messages::{ConnectEndpoint, SubscribeToChanges},
    },
    connection::{Connection, ConnectivityState},
    error::{Error, ErrorKind, Outcome},
    transport::Endpoint,
};

/// Interval at which a waiting request names its member again. The balancer forgets the name after a while.
const NAMED_RENEWAL: Duration = Duration::from_secs(1);

impl Caller {
    /// Returns a caller for requests to this member only. Fails if it is not an endpoint of the client.
    pub(crate) fn at(&self, endpoint: Endpoint) -> Result<Self, Error> {
        if self.view(&endpoint).is_none() {
            return Err(Error::invalid(format!(
                "{endpoint} is not an endpoint of this client; choose one of `Client::endpoints`"
            )));
        }
        self.keep_named(&endpoint);
        Ok(Self {
            named_endpoint: Some(endpoint),
            ..self.clone()
        })
    }

    /// Keeps the endpoint of a request connected, even if the policy would leave it idle.
    fn keep_named(&self, endpoint: &Endpoint) {
        if self.policy.connection_mode() == ConnectionMode::Single {
            self.balancer.do_send(ConnectEndpoint(endpoint.clone()));
        }
    }

    /// Returns the members, ready ones first, without those whose last connection attempt failed.
    pub(crate) fn members_by_readiness(&self) -> Vec<Endpoint> {
        let set = self.ready_set.load();
        let mut members: Vec<&EndpointView> = set
            .views
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

    /// Returns a connection to this member. Connects if the policy keeps the endpoint disconnected.
    pub(crate) async fn connect_to(
        &self,
        endpoint: Endpoint,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Error> {
        let connect_deadline = Instant::now() + self.context.dial.connect_timeout;
        let named = self.at(endpoint)?;
        named.ready_connection(deadline.min(connect_deadline)).await
    }

    /// Returns a connection to a member that is not in `avoided`. If there is none, clears `avoided` and returns any
    /// connection.
    pub(crate) async fn connection_avoiding(
        &self,
        avoided: &mut Vec<Endpoint>,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Error> {
        if !avoided.is_empty() {
            for other in self.members_by_readiness() {
                if !avoided.contains(&other)
                    && let Ok(connection) = self.connect_to(other, deadline).await
                {
                    return Ok(connection);
                }
            }
            avoided.clear();
        }
        self.ready_connection(deadline).await
    }

    fn view(&self, endpoint: &Endpoint) -> Option<EndpointView> {
        let set = self.ready_set.load();
        let found = set.views.iter().find(|view| view.endpoint == *endpoint);
        found.cloned()
    }

    pub(super) fn connection_of(&self, endpoint: &Endpoint) -> Option<Arc<Connection>> {
        self.view(endpoint)?.connection
    }

    /// Waits until the member has a connection.
    pub(super) async fn await_named_member(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
    ) -> Result<(), Error> {
        let changes = timeout_at(deadline, self.balancer.send(SubscribeToChanges)).await;
        // If the balancer does not respond in time, the error describes the current state of the endpoint.
        let mut changes = match changes {
            Ok(changes) => Some(changes.map_err(|_| Error::shut_down())?),
            Err(_) => None,
        };
        loop {
            self.keep_named(endpoint);
            let Some(view) = self.view(endpoint) else {
                return Err(if self.ready_set.load().closed {
                    Error::shut_down()
                } else {
                    Error::invalid(format!(
                        "{endpoint} is no longer an endpoint of this client"
                    ))
                });
            };
            if view.connection.is_some() {
                return Ok(());
            }
            // Missed changes do not matter: the whole set is checked again.
            let change = async {
                match &mut changes {
                    Some(changes) => drop(changes.recv().await),
                    None => std::future::pending().await,
                }
            };
            let renew_at = deadline.min(Instant::now() + NAMED_RENEWAL);
            if timeout_at(renew_at, change).await.is_err() && Instant::now() >= deadline {
                let reason = match &view.error {
                    Some(error) => error.brief(),
                    None => format!("the endpoint is {}", view.state),
                };
                return Err(Error::new(ErrorKind::Unavailable, Outcome::NotSent, reason)
                    .with_endpoint(endpoint.name()));
            }
            if !self.balancer.connected() {
                return Err(Error::shut_down());
            }
        }
    }
}
