//! Removing a key.

use std::time::Duration;

use super::{
    RemoveOutcome,
    update::unchanged_since,
    write_if::{WriteOptions, WriteResult, write_if, write_options},
};
use crate::{
    client::Client,
    error::Result,
    kv::{Delete, delete},
    layers::exactly_once::MarkingClient,
    proto::rpc,
    request::{IntoBytes, macros::request},
};

/// Deletes a key if it exists. See [`Client::remove`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Remove<C = ()> {
    delete: Delete,
    mod_revision: Option<i64>,
    options: WriteOptions,
    timeout: Option<Duration>,
    client: C,
}

request!(Remove { delete, mod_revision, options } -> RemoveOutcome, MarkingClient);
write_options!(Remove);

/// Creates a request that deletes a key if it exists.
pub fn remove(key: impl IntoBytes) -> Remove {
    Remove {
        delete: delete(key),
        mod_revision: None,
        options: WriteOptions::default(),
        timeout: None,
        client: (),
    }
}

impl Client {
    /// Deletes a key if it exists and, with [`at`](Remove::at), has not changed since a revision, exactly once. The
    /// result says whether it existed.
    pub fn remove(&self, key: impl IntoBytes) -> Remove<Self> {
        remove(key).on(self)
    }
}

impl<C> Remove<C> {
    /// Deletes the key only if this is its mod revision. Default: any revision.
    pub fn at(mut self, mod_revision: i64) -> Self {
        self.mod_revision = Some(mod_revision);
        self
    }
}

impl Remove {
    async fn perform(
        self,
        client: &impl MarkingClient,
        timeout: Duration,
    ) -> Result<RemoveOutcome> {
        let key = self.delete.wire()?.key;
        let condition = unchanged_since(&key, self.mod_revision)?;
        let client = client.marking_client();
        let (delete, options) = (self.delete, &self.options);
        let result = write_if(
            client,
            rpc::DELETE_RANGE,
            &key,
            condition,
            delete,
            options,
            timeout,
        )
        .await?;
        Ok(match result {
            WriteResult::Applied(revision) => RemoveOutcome::Removed { revision },
            WriteResult::ConditionFailed(found) => RemoveOutcome::Conflict(found),
        })
    }
}
