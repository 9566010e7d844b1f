//! Waiting for the first member: until it is ready, or until it is clear that none will be.

use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::Instant,
};

use super::Caller;
use crate::{
    balancer::{ConnectivityChange, ReadySet, messages::SubscribeToChanges},
    error::{Error, ErrorKind, Outcome},
};

impl Caller {
    /// Waits until a member can take a request. Where TLS stands in the way at every endpoint, waiting does not help:
    /// that is told at once.
    pub(crate) async fn first_ready(&self, deadline: Instant) -> Result<(), Error> {
        let changes = self.balancer.send(SubscribeToChanges).await;
        let changes = changes.map_err(|_| Error::shut_down())?;
        tokio::select! {
            biased;
            ready = self.wait_ready(deadline) => ready,
            hopeless = self.hopeless(changes) => Err(hopeless),
        }
    }

    async fn hopeless(&self, mut changes: Receiver<ConnectivityChange>) -> Error {
        loop {
            if let Some(error) = refused_everywhere(&self.ready.load()) {
                return error;
            }
            // Whatever changed, and however many changes were missed: the picture is looked at again.
            if let Err(RecvError::Closed) = changes.recv().await {
                return Error::shut_down();
            }
        }
    }
}

fn refused_everywhere(set: &ReadySet) -> Option<Error> {
    let refused = |error: &Option<Error>| {
        let error = error.as_ref();
        error.is_some_and(|error| error.kind() == ErrorKind::TlsFailed)
    };
    let all = !set.members.is_empty() && set.members.iter().all(|member| refused(&member.error));
    all.then(|| {
        let failures = set.endpoint_failures();
        let reason = format!("no endpoint accepted a TLS connection ({failures})");
        Error::new(ErrorKind::TlsFailed, Outcome::NotSent, reason)
    })
}
