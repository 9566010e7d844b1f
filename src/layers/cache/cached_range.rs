//! The keys of a cache.

use bytes::Bytes;

use crate::{
    client::Client,
    kv::Get,
    request::ClientHandle,
    watch::{WatchRequest, watch_keys},
};

/// A prefix, or a single key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CachedRange {
    Prefix(Bytes),
    Key(Bytes),
}

impl CachedRange {
    pub(crate) fn key(&self) -> &Bytes {
        match self {
            Self::Prefix(key) | Self::Key(key) => key,
        }
    }

    /// Returns the range with the namespace of the client, as etcd gets it.
    pub(crate) fn sent_by(&self, client: &Client) -> Self {
        let mut range = self.clone();
        if let Some(namespace) = client.view().namespace() {
            match &mut range {
                Self::Prefix(key) | Self::Key(key) => namespace.add(key),
            }
        }
        range
    }

    pub(super) fn is_prefix(&self) -> bool {
        matches!(self, Self::Prefix(_))
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Prefix(prefix) => key.starts_with(prefix),
            Self::Key(own) => key == own,
        }
    }

    /// Returns a read of all keys.
    pub(super) fn read(&self, client: &Client) -> Get<Client> {
        let read = client.get(self.key().clone());
        if self.is_prefix() {
            read.prefix()
        } else {
            read
        }
    }

    pub(super) fn watch(&self, client: &Client) -> WatchRequest<Client> {
        let watch = watch_keys(self.key().clone()).on(client);
        if self.is_prefix() {
            watch.prefix()
        } else {
            watch
        }
    }

    /// Returns a cheap linearizable read of the current revision, which needs no other permission than the cache.
    pub(super) fn read_revision(&self, client: &Client) -> Get<Client> {
        let first = match self.key() {
            key if key.is_empty() => Bytes::from_static(&[0]),
            key => key.clone(),
        };
        client.get(first).keys_only()
    }
}
