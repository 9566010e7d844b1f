//! Reads a key, or all keys with a prefix, and then reports every later revision.
//!
//! The watch is opened first, from now on, and events up to the revision of the read are dropped. A watch from a past
//! revision would be slower: etcd sends it nothing before its next round of catching up, which runs every 100 ms.
//!
//! The keys are read again if the revisions in between were compacted, or if the cluster was restored from an older
//! backup and its history is a different one.

use bytes::Bytes;

use crate::{
    client::Client,
    error::Result,
    kv::GetResponse,
    retry::availability::{RETRY_DELAY, is_temporary},
    watch::{RevisionEvents, Watch, WatchEnd, WatchEvent},
};

pub(crate) struct ReadThenWatch {
    client: Client,
    key: Bytes,
    /// Whether `key` is a prefix.
    prefix: bool,
    watch: Option<Watch>,
    /// Revision of the last snapshot, which includes all events up to it.
    snapshot_revision: i64,
}

/// The next state or change of the keys.
#[derive(Debug)]
pub(crate) enum KeysUpdate {
    /// All keys at one revision. Replaces everything known before.
    Snapshot(GetResponse),
    /// All events of the next revision.
    Events(RevisionEvents),
}

impl ReadThenWatch {
    pub(crate) fn prefix(client: Client, prefix: Bytes) -> Self {
        Self {
            prefix: true,
            ..Self::key(client, prefix)
        }
    }

    pub(crate) fn key(client: Client, key: Bytes) -> Self {
        Self {
            client,
            key,
            prefix: false,
            watch: None,
            snapshot_revision: 0,
        }
    }

    /// Returns the next update. Retries after temporary errors. Fails with an error that does not pass by itself: the
    /// client was shut down, the user may not read the keys, or the endpoints lead to another cluster.
    pub(crate) async fn next(&mut self) -> Result<KeysUpdate> {
        loop {
            match self.step().await {
                Ok(Some(update)) => return Ok(update),
                Ok(None) => {}
                Err(error) if is_temporary(&error) => tokio::time::sleep(RETRY_DELAY).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes one attempt. Returns `None` if there is no update yet, and fails with any error.
    pub(crate) async fn step(&mut self) -> Result<Option<KeysUpdate>> {
        let Some(watch) = &mut self.watch else {
            return self.read().await;
        };
        match watch.next().await {
            Some(WatchEvent::Events(events)) => {
                let is_new = events.revision() > self.snapshot_revision;
                Ok(is_new.then_some(KeysUpdate::Events(events)))
            }
            Some(WatchEvent::Ended(
                WatchEnd::Compacted { .. } | WatchEnd::RevisionRegressed { .. },
            ))
            | None => {
                self.watch = None;
                Ok(None)
            }
            Some(WatchEvent::Ended(end)) => Err(end.to_error()),
            Some(_) => Ok(None),
        }
    }

    async fn read(&mut self) -> Result<Option<KeysUpdate>> {
        let watch = self.client.watch(self.key.clone());
        let watch = if self.prefix { watch.prefix() } else { watch };
        let watch = watch.await?;
        let found = self.get().await?;
        self.watch = Some(watch);
        self.snapshot_revision = found.header.revision;
        Ok(Some(KeysUpdate::Snapshot(found)))
    }

    async fn get(&self) -> Result<GetResponse> {
        let read = self.client.get(self.key.clone());
        if self.prefix { read.prefix() } else { read }.await
    }
}
