//! Chooses the member of a request, and waits for one if none is ready.

use std::sync::Arc;

use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::Caller;
use crate::{
    balancer::{ReadyEndpoints, messages::AwaitReady},
    connection::Connection,
    error::Error,
    retry::failure_log::FailureLog,
    transport::channel::StreamUse,
};

impl Caller {
    /// Returns a connection for a stream, or for a request that does not use [`unary`](Self::unary).
    pub(crate) async fn ready_connection(
        &self,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Error> {
        loop {
            if let Some(connection) = self.pick(false, None, StreamUse::LongLived) {
                return Ok(connection);
            }
            self.await_candidate(false, deadline).await?;
        }
    }

    /// Waits until a member is ready for all requests.
    pub(crate) async fn wait_ready(&self, deadline: Instant) -> Result<(), Error> {
        while self.ready_set.load().ready.is_empty() {
            self.await_candidate(false, deadline).await?;
        }
        Ok(())
    }

    pub(super) fn member_count(&self) -> usize {
        if self.named_endpoint.is_some() {
            return 1;
        }
        self.ready_set.load().views.len()
    }

    /// Returns a connection that the policy picks, if possible one that has not failed and has a free stream.
    pub(super) fn pick(
        &self,
        leaderless: bool,
        failures: Option<&FailureLog>,
        stream_use: StreamUse,
    ) -> Option<Arc<Connection>> {
        if let Some(endpoint) = &self.named_endpoint {
            return self.connection_of(endpoint);
        }
        let set = self.ready_set.load();
        let usable = if set.ready.is_empty() && leaderless {
            &set.leaderless
        } else {
            &set.ready
        };
        if usable.is_empty() {
            return None;
        }
        let avoided = |connection: &Connection| {
            failures.is_some_and(|log| log.avoids(connection.id.0))
                || !self.accepts_token(connection)
        };
        let preferred = |connection: &Connection| {
            let channel = &connection.channel;
            channel.accepts_requests() && channel.has_free_slot(stream_use) && !avoided(connection)
        };
        let endpoints = ReadyEndpoints::all(usable);
        let mut picked = &usable[0];
        for _ in 0..usable.len() {
            let index = self.policy.pick(&endpoints);
            picked = usable.get(index).unwrap_or(&usable[0]);
            if preferred(picked) {
                return Some(picked.clone());
            }
        }
        // A policy that always picks the same member must not prevent a retry on the others.
        if let Some(other) = usable.iter().find(|other| preferred(other)) {
            return Some(other.clone());
        }
        // All have failed or have no free stream. The rounds above end at the same member each time, so the waiting
        // calls are spread at random. A member that has not responded to a token yet is better than one that refused it.
        let mut waited_for: Vec<_> = usable.iter().filter(|other| !avoided(other)).collect();
        if waited_for.is_empty() {
            waited_for.extend(usable.iter().filter(|other| !other.refuses_tokens()));
        }
        let index = fastrand::usize(..waited_for.len().max(1));
        Some(waited_for.get(index).copied().unwrap_or(picked).clone())
    }

    /// Returns whether the member is known to process requests with the client's token.
    pub(super) fn accepts_token(&self, connection: &Connection) -> bool {
        !connection.refuses_tokens() && (!self.tokens.are_sent() || connection.responds_to_tokens())
    }

    /// Returns the ready members that pass the filter. A request that names its member has no others.
    pub(super) fn other_members(
        &self,
        filter: impl Fn(&Arc<Connection>) -> bool,
    ) -> Vec<Arc<Connection>> {
        if self.named_endpoint.is_some() {
            return Vec::new();
        }
        let set = self.ready_set.load();
        let others = set.ready.iter().filter(|other| filter(other));
        others.cloned().collect()
    }

    /// Waits until there may be a member for [`pick`](Self::pick).
    pub(super) async fn await_candidate(
        &self,
        leaderless: bool,
        deadline: Instant,
    ) -> Result<(), Error> {
        if self.ready_set.load().closed {
            return Err(Error::shut_down());
        }
        if let Some(endpoint) = &self.named_endpoint {
            return self.await_named_member(endpoint, deadline).await;
        }
        let (ready, is_ready) = oneshot::channel();
        self.balancer.do_send(AwaitReady { ready, leaderless });
        match timeout_at(deadline, is_ready).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) if self.ready_set.load().closed || !self.balancer.connected() => {
                Err(Error::shut_down())
            }
            // The balancer crashed and restarts: the caller sends the message again.
            Ok(Err(_)) => {
                tokio::task::yield_now().await;
                Ok(())
            }
            Err(_) => Err(self.none_ready()),
        }
    }

    pub(super) fn none_ready(&self) -> Error {
        let tie = self.context.cluster.tie();
        tie.unwrap_or_else(|| self.ready_set.load().none_ready())
    }
}
