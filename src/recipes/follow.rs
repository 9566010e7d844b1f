//! Follows a key, or all keys under a prefix: a read, then every revision after it, and a read again where history was compacted
//! away in between, or is another one: the cluster was restored from an old backup.

use bytes::Bytes;

use super::{held::PAUSE, queue::passes};
use crate::{
    client::Client,
    error::{ErrorKind, Result},
    kv::GetResponse,
    watch::{RevisionEvents, Watch, WatchEnd, WatchEvent},
};

pub(super) struct Follow {
    client: Client,
    key: Bytes,
    /// All keys that begin with it.
    all: bool,
    watch: Option<Watch>,
    /// The revision it had seen when a member knew less.
    doubt: Option<i64>,
}

/// What is seen next.
#[derive(Debug)]
pub(super) enum Seen {
    /// All keys, as they are at one revision: whatever was known before is old.
    All(GetResponse),
    /// Everything that happened at the next revision.
    Events(RevisionEvents),
}

impl Follow {
    pub(super) fn prefix(client: Client, prefix: Bytes) -> Self {
        Self {
            all: true,
            ..Self::key(client, prefix)
        }
    }

    pub(super) fn key(client: Client, key: Bytes) -> Self {
        Self {
            client,
            key,
            all: false,
            watch: None,
            doubt: None,
        }
    }

    /// What is seen next; outages are waited out. Fails where that would never end: the client was shut down, the user
    /// may not read the keys, the cluster is another one.
    pub(super) async fn next(&mut self) -> Result<Seen> {
        loop {
            match self.step().await {
                Ok(Some(seen)) => return Ok(seen),
                Ok(None) => {}
                Err(error) if passes(&error) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// One attempt: fails with whatever fails, and gives nothing where there is nothing to tell yet.
    pub(super) async fn step(&mut self) -> Result<Option<Seen>> {
        let watch = match &mut self.watch {
            Some(watch) if self.doubt.is_none() => watch,
            _ => return self.read().await,
        };
        match watch.next().await {
            Some(WatchEvent::Events(events)) => Ok(Some(Seen::Events(events))),
            Some(WatchEvent::Ended(WatchEnd::Compacted { .. })) | None => {
                self.watch = None;
                Ok(None)
            }
            Some(WatchEvent::Ended(why)) => Err(why.to_error()),
            Some(WatchEvent::RevisionRegressed { seen, .. }) => {
                self.doubt = Some(seen);
                Ok(None)
            }
            Some(_) => Ok(None),
        }
    }

    async fn read(&mut self) -> Result<Option<Seen>> {
        let read = self.client.get(self.key.clone());
        let found = if self.all { read.prefix() } else { read }.await?;
        let revision = found.header.revision;
        // The member only lagged: what it tells next is what comes next.
        if self.watch.is_some() && self.doubt.is_some_and(|seen| revision >= seen) {
            self.doubt = None;
            return Ok(None);
        }
        let watch = self.client.watch(self.key.clone());
        let watch = if self.all { watch.prefix() } else { watch };
        match watch.start_revision(revision + 1).await {
            Ok(watch) => self.watch = Some(watch),
            // Compacted between the two: read again.
            Err(error) if error.kind() == ErrorKind::Compacted => return Ok(None),
            Err(error) => return Err(error),
        }
        self.doubt = None;
        Ok(Some(Seen::All(found)))
    }
}
