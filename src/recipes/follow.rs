//! Follows all keys under a prefix: a read, then every revision after it, and a read again where history was compacted
//! away in between.

use bytes::Bytes;

use super::{held::PAUSE, queue::passes};
use crate::{
    api::{
        kv::GetResponse,
        watch::{Events, Watch, WatchEnd, WatchItem},
    },
    client::Client,
    error::{ErrorKind, Result},
};

pub(super) struct Follow {
    client: Client,
    prefix: Bytes,
    watch: Option<Watch>,
}

/// What is seen next.
#[derive(Debug)]
pub(super) enum Seen {
    /// All keys, as they are at one revision: whatever was known before is old.
    All(GetResponse),
    /// Everything that happened at the next revision.
    Events(Events),
}

impl Follow {
    pub(super) fn new(client: Client, prefix: Bytes) -> Self {
        Self {
            client,
            prefix,
            watch: None,
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
        let Some(watch) = &mut self.watch else {
            let found = self.client.get(self.prefix.clone()).prefix().await?;
            let watch = self.client.watch(self.prefix.clone()).prefix();
            let from = found.header.revision + 1;
            match watch.start_revision(from).await {
                Ok(watch) => self.watch = Some(watch),
                // Compacted between the two: read again.
                Err(error) if error.kind() == ErrorKind::Compacted => return Ok(None),
                Err(error) => return Err(error),
            }
            return Ok(Some(Seen::All(found)));
        };
        match watch.next().await {
            Some(WatchItem::Events(events)) => Ok(Some(Seen::Events(events))),
            Some(WatchItem::Ended(WatchEnd::Compacted { .. })) | None => {
                self.watch = None;
                Ok(None)
            }
            Some(WatchItem::Ended(why)) => Err(why.to_error()),
            Some(_) => Ok(None),
        }
    }
}
