//! Creating a key.

use std::time::Duration;

use super::{
    CreateOutcome,
    write_if::{WriteOptions, WriteResult, write_if, write_options},
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    kv::{Compare, Put, put},
    layers::exactly_once::MarkingClient,
    proto::rpc,
    request::{IntoBytes, macros::request},
};

/// Writes a key if it does not exist. See [`Client::create`].
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Create<C = ()> {
    put: Put,
    options: WriteOptions,
    timeout: Option<Duration>,
    client: C,
}

request!(Create { put, options } -> CreateOutcome, MarkingClient);
write_options!(Create);

/// Creates a request that writes a key if it does not exist.
pub fn create(key: impl IntoBytes, value: impl IntoBytes) -> Create {
    Create {
        put: put(key, value),
        options: WriteOptions::default(),
        timeout: None,
        client: (),
    }
}

impl Client {
    /// Writes a key if it does not exist, exactly once.
    pub fn create(&self, key: impl IntoBytes, value: impl IntoBytes) -> Create<Self> {
        create(key, value).on(self)
    }
}

impl<C> Create<C> {
    /// Attaches the key to a lease: etcd deletes the key when the lease ends. Default: no lease.
    pub fn lease(mut self, lease: impl Into<i64>) -> Self {
        self.put = self.put.lease(lease);
        self
    }
}

impl Create {
    async fn perform(
        self,
        client: &impl MarkingClient,
        timeout: Duration,
    ) -> Result<CreateOutcome> {
        let key = self.put.wire()?.key;
        let client = client.marking_client();
        let absent = Compare::version(&key).eq(0);
        let (put, options) = (self.put, &self.options);
        let result = write_if(client, rpc::PUT, &key, absent, put, options, timeout).await?;
        match result {
            WriteResult::Applied(revision) => Ok(CreateOutcome::Created { revision }),
            WriteResult::ConditionFailed(Some(kv)) => Ok(CreateOutcome::Exists(kv)),
            WriteResult::ConditionFailed(None) => {
                let reason = "the key neither exists nor was it created";
                Err(Error::new(ErrorKind::Protocol, Outcome::Rejected, reason))
            }
        }
    }
}
