//! Updating a key.

use std::time::Duration;

use super::{
    UpdateOutcome,
    write_if::{WriteOptions, WriteResult, write_if, write_options},
};
use crate::{
    client::Client,
    error::{Error, Result},
    kv::{Compare, Put, put},
    layers::exactly_once::MarkingClient,
    proto::rpc,
    request::{IntoBytes, macros::request},
};

/// Writes a key if it exists. See [`Client::update`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Update<C = ()> {
    put: Put,
    mod_revision: Option<i64>,
    lease: Option<i64>,
    options: WriteOptions,
    timeout: Option<Duration>,
    client: C,
}

request!(Update { put, mod_revision, lease, options } -> UpdateOutcome, MarkingClient);
write_options!(Update);

/// Creates a request that writes a key if it exists.
pub fn update(key: impl IntoBytes, value: impl IntoBytes) -> Update {
    Update {
        put: put(key, value),
        mod_revision: None,
        lease: None,
        options: WriteOptions::default(),
        timeout: None,
        client: (),
    }
}

impl Client {
    /// Writes a key if it exists and, with [`at`](Update::at), has not changed since a revision, exactly once.
    pub fn update(&self, key: impl IntoBytes, value: impl IntoBytes) -> Update<Self> {
        update(key, value).on(self)
    }
}

impl<C> Update<C> {
    /// Writes the key only if this is its mod revision. Default: any revision.
    pub fn at(mut self, mod_revision: i64) -> Self {
        self.mod_revision = Some(mod_revision);
        self
    }

    /// Attaches the key to this lease, or with 0 to none. Default: the key keeps its lease.
    pub fn lease(mut self, lease: impl Into<i64>) -> Self {
        self.lease = Some(lease.into());
        self
    }
}

impl Update {
    async fn perform(
        self,
        client: &impl MarkingClient,
        timeout: Duration,
    ) -> Result<UpdateOutcome> {
        let put = match self.lease {
            Some(lease) => self.put.lease(lease),
            None => self.put.ignore_lease(),
        };
        let key = put.wire()?.key;
        let condition = unchanged_since(&key, self.mod_revision)?;
        let client = client.marking_client();
        let result = write_if(
            client,
            rpc::PUT,
            &key,
            condition,
            put,
            &self.options,
            timeout,
        )
        .await?;
        Ok(match result {
            WriteResult::Applied(revision) => UpdateOutcome::Updated { revision },
            WriteResult::ConditionFailed(found) => UpdateOutcome::Conflict(found),
        })
    }
}

/// Returns the condition that a key exists and has not changed since a revision.
pub(super) fn unchanged_since(key: impl IntoBytes, mod_revision: Option<i64>) -> Result<Compare> {
    match mod_revision {
        None => Ok(Compare::version(key).gt(0)),
        Some(revision) if revision > 0 => Ok(Compare::mod_revision(key).eq(revision)),
        Some(_) => Err(Error::invalid(
            "the mod revision of a key that exists is greater than zero; use `create` for a key that does not exist",
        )),
    }
}
