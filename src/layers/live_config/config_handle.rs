//! The handle of a configuration.

use std::{
    fmt,
    sync::{Arc, PoisonError},
};

use actix::Recipient;
use tokio::sync::watch;

use super::{
    ConfigChanges, ConfigEvent, RejectedConfig,
    config_task::{ConfigCell, ConfigState},
};
use crate::{
    client::{
        Client,
        subscription::{Subscription, subscribe_to_end},
    },
    error::Error,
    layers::cache::{Cache, CacheFreshness},
};

/// A typed configuration that is always current, see the [module](super). Clones share it. Its updates end when its
/// last clone is dropped.
#[must_use = "dropping the configuration ends its updates"]
pub struct LiveConfig<T> {
    /// Keeps the client running.
    client: Client,
    /// Keeps the keys current.
    cache: Cache,
    cell: Arc<ConfigCell<T>>,
    /// Changes with each version. Keeps the task running.
    ticks: watch::Receiver<()>,
}

impl<T> Clone for LiveConfig<T> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            cache: self.cache.clone(),
            cell: self.cell.clone(),
            ticks: self.ticks.clone(),
        }
    }
}

impl<T: Send + Sync + 'static> LiveConfig<T> {
    pub(super) fn new(
        client: Client,
        cache: Cache,
        cell: Arc<ConfigCell<T>>,
        ticks: watch::Receiver<()>,
    ) -> Self {
        Self {
            client,
            cache,
            cell,
            ticks,
        }
    }

    /// Returns the last accepted value. Takes no lock and sends no request.
    pub fn get(&self) -> Arc<T> {
        self.cell.state.load().value.clone()
    }

    /// Returns the revision of the change that the value comes from; that of the read if the value is the default.
    pub fn revision(&self) -> i64 {
        self.cell.state.load().revision
    }

    /// Returns the current version in etcd if it was rejected, and `None` if it is in use.
    pub fn rejected(&self) -> Option<RejectedConfig> {
        let state = self.cell.state.load();
        state
            .rejected
            .as_ref()
            .map(|(_, rejected)| rejected.clone())
    }

    /// Returns how fresh the keys of the configuration are, and why they are behind if they are.
    pub fn freshness(&self) -> CacheFreshness {
        self.cache.freshness()
    }

    /// Returns a stream of the changes from now on.
    pub fn changed(&self) -> ConfigChanges<T> {
        let seen = {
            let state = self.state();
            let rejected = state.rejected.as_ref();
            (state.accepted, rejected.map_or(0, |(number, _)| *number))
        };
        ConfigChanges::after(self.clone(), seen)
    }

    /// Waits until the value fulfils a condition, and returns it. Has no deadline. Fails if the updates end.
    pub async fn wait_until(&self, mut condition: impl FnMut(&T) -> bool) -> Result<Arc<T>, Error> {
        let mut changes = self.changed();
        let mut value = self.get();
        loop {
            if condition(&value) {
                return Ok(value);
            }
            match changes.next().await {
                Some(ConfigEvent::Changed { value: new, .. }) => value = new,
                Some(ConfigEvent::Rejected(_)) => {}
                Some(ConfigEvent::Ended(error)) => return Err(error),
                None => return Err(Error::shut_down()),
            }
        }
    }

    /// Sends the current value to an actor, and then each change. The next event is sent when the actor has handled the
    /// last one; a slow actor gets the latest value only. The delivery ends when the actor stops, the updates end, or
    /// the subscription is dropped.
    pub fn deliver_to(&self, recipient: Recipient<ConfigEvent<T>>) -> Subscription {
        let config = Self {
            client: self.client.for_background(),
            cache: self.cache.clone().for_background(),
            cell: self.cell.clone(),
            ticks: self.ticks.clone(),
        };
        let changes = ConfigChanges::after(config, (0, 0));
        let if_shut_down = ConfigEvent::Ended(Error::shut_down());
        subscribe_to_end(&self.client, changes, recipient, Some(if_shut_down))
    }

    /// Returns the last problem with the [snapshot file](super::LiveConfigBuilder::snapshot_file): why it was ignored at
    /// the start, or why it could not be written. `None` if there is none, or since the file was written.
    pub fn file_error(&self) -> Option<Error> {
        let error = self.cell.file_error.lock();
        error.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the updates of all clones, and waits until the snapshot file is written. Clones return the last value.
    pub async fn close(self) {
        let mut ticks = self.ticks.clone();
        self.cache.close().await;
        while ticks.changed().await.is_ok() {}
    }

    pub(super) fn state(&self) -> arc_swap::Guard<Arc<ConfigState<T>>> {
        self.cell.state.load()
    }

    pub(super) fn ticks(&self) -> watch::Receiver<()> {
        self.ticks.clone()
    }
}

impl<T: fmt::Debug + Send + Sync + 'static> fmt::Debug for LiveConfig<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveConfig")
            .field("value", &self.get())
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}
