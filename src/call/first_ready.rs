//! Waits for the first ready member. Fails early if no endpoint can become ready.

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
    /// Waits until a member is ready. Fails at once if TLS fails at every endpoint, or if the endpoints belong to
    /// different clusters without a majority.
    pub(crate) async fn first_ready(&self, deadline: Instant) -> Result<(), Error> {
        let changes = self.balancer.send(SubscribeToChanges).await;
        let changes = changes.map_err(|_| Error::shut_down())?;
        tokio::select! {
            biased;
            ready = self.wait_ready(deadline) => ready,
            error = self.tls_failed_everywhere(changes) => Err(error),
            error = self.context.cluster.tied() => Err(error),
        }
    }

    async fn tls_failed_everywhere(&self, mut changes: Receiver<ConnectivityChange>) -> Error {
        loop {
            if let Some(error) = tls_error(&self.ready_set.load()) {
                return error;
            }
            // Missed changes do not matter: the whole set is checked again.
            if let Err(RecvError::Closed) = changes.recv().await {
                return Error::shut_down();
            }
        }
    }
}

fn tls_error(set: &ReadySet) -> Option<Error> {
    let is_tls = |error: &Option<Error>| {
        let error = error.as_ref();
        error.is_some_and(|error| error.kind() == ErrorKind::TlsFailed)
    };
    let all = !set.views.is_empty() && set.views.iter().all(|view| is_tls(&view.error));
    all.then(|| {
        let failures = set.endpoint_failures();
        let reason = format!("TLS failed at every endpoint ({failures})");
        Error::new(ErrorKind::TlsFailed, Outcome::NotSent, reason)
    })
}
