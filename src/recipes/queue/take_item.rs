//! Takes the next item, and waits for one in a line of takers.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    QueueItem,
    claim_item::ClaimTask,
    next_item::{ReadyItem, TakeOrder, next_items},
    queue_keys::QueueKeys,
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Result},
    kv::{Compare, delete, put},
    recipes::{
        mutex::Ownership,
        session::{Session, SessionLease},
    },
    retry::availability::{RETRY_DELAY, is_temporary},
    watch::{Watch, WatchEnd, WatchEvent},
};

/// Items that a taker tries to claim until it reads the queue again.
const CLAIMS_PER_READ: usize = 4;

/// Where items go that have failed too often.
#[derive(Debug, Clone)]
pub(super) struct DeadLetters {
    pub(super) after: u32,
    pub(super) name: Bytes,
}

/// Takes items for one session.
#[derive(Clone)]
pub(super) struct Taker {
    /// Does not keep the client running.
    pub(super) client: Client,
    pub(super) keys: QueueKeys,
    pub(super) order: TakeOrder,
    pub(super) visibility: Duration,
    pub(super) dead_letters: Option<(u32, QueueKeys)>,
    pub(super) session: Arc<Session>,
}

impl Taker {
    /// Waits for an item. Retries after temporary errors, and with the next lease after the loss of one.
    pub(super) async fn take(&self) -> Result<QueueItem> {
        loop {
            let taken = match self.take_ready().await {
                Ok(None) => self.wait_in_line().await,
                taken => taken,
            };
            match taken {
                Ok(Some(item)) => return Ok(item),
                Ok(None) => {}
                Err(error) if is_temporary(&error) => tokio::time::sleep(RETRY_DELAY).await,
                Err(error) if error.kind() == ErrorKind::SessionLost => {
                    // Fails if the session has ended for good.
                    SessionLease::healed(self.session.state()).await?;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the next item, or returns `None` if none is ready.
    pub(super) async fn take_ready(&self) -> Result<Option<QueueItem>> {
        loop {
            let items = next_items(&self.client, &self.keys, self.order).await?;
            if items.is_empty() {
                return Ok(None);
            }
            if let Some(item) = self.take_one_of(items).await? {
                return Ok(Some(item));
            }
        }
    }

    /// Takes one of the next items, or returns `None` if other takers were faster.
    async fn take_one_of(&self, items: Vec<ReadyItem>) -> Result<Option<QueueItem>> {
        // Takers that compete need not read the queue again for each item. Later, what they have read is old.
        for item in items.into_iter().take(CLAIMS_PER_READ) {
            if self.is_dead(&item) {
                match self.move_to_dead_letters(&item).await {
                    Ok(()) => continue,
                    Err(error) if is_temporary(&error) => return Err(error),
                    // Otherwise the items behind this one would never be taken.
                    Err(error) => {
                        tracing::warn!(%error, key = ?item.key, "item not moved to dead letters, take it again");
                    }
                }
            }
            if let Some(item) = self.claim(item).await? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Waits until this taker is the first one in the line, and then for an item. Returns `None` if it has lost its place.
    async fn wait_in_line(&self) -> Result<Option<QueueItem>> {
        let line = self.session.mutex(&self.keys.takers);
        let first = match line.lock().await {
            // This taker's key was deleted by hand.
            Err(error) if error.kind() == ErrorKind::LockLost => return Ok(None),
            locked => locked?,
        };
        tokio::select! {
            biased;
            _ = first.lost() => Ok(None),
            taken = self.take_when_ready() => taken.map(Some),
        }
    }

    async fn take_when_ready(&self) -> Result<QueueItem> {
        loop {
            // Before the read, so that no change is missed.
            let mut changes = QueueChanges::open(&self.client, &self.keys).await?;
            loop {
                if let Some(item) = self.take_ready().await? {
                    return Ok(item);
                }
                if !changes.next().await? {
                    break;
                }
            }
        }
    }

    /// Claims an item on a separate task that continues if this future is dropped: it then gives the item back.
    async fn claim(&self, item: ReadyItem) -> Result<Option<QueueItem>> {
        let lease = SessionLease::healed(self.session.state()).await?;
        let task = ClaimTask::new(self.client.clone(), lease, &self.keys, item);
        let (session, visibility) = (self.session.clone(), self.visibility);
        let (mut sender, taken) = oneshot::channel();
        let started = self.client.run(move || {
            actix_rt::spawn(async move {
                let result = claim_and_hold(&task, session, visibility, &mut sender).await;
                if let Err(Ok(Some(unreceived))) = sender.send(result) {
                    unreceived.hold().give_back().await;
                }
            });
        });
        if !started {
            return Err(Error::shut_down());
        }
        taken.await.map_err(|_| Error::shut_down())?
    }

    fn is_dead(&self, item: &ReadyItem) -> bool {
        let limit = self
            .dead_letters
            .as_ref()
            .map(|(after, _)| i64::from(*after));
        limit.is_some_and(|limit| item.takes >= limit)
    }

    /// Moves an item to another queue, unless it was taken meanwhile. If the response is lost, the next read shows whether
    /// it has moved.
    async fn move_to_dead_letters(&self, item: &ReadyItem) -> Result<()> {
        let Some((_, dead_letters)) = &self.dead_letters else {
            return Ok(());
        };
        let found = self.client.get(&item.key).await?;
        let Some(value) = found.value() else {
            return Ok(());
        };
        let to = dead_letters.moved_here(&self.keys, &item.key);
        let unchanged = Compare::mod_revision(&item.key).eq(item.mod_revision);
        let unclaimed = Compare::create_revision(self.keys.claim_of(&item.key)).eq(0);
        let moved = self.client.txn().when([unchanged, unclaimed]);
        let moved = moved.then((put(&to, value), delete(&item.key))).await?;
        if moved.succeeded {
            tracing::warn!(key = ?item.key, ?to, takes = item.takes, "item moved to dead letters");
        }
        Ok(())
    }
}

/// Runs on the client's thread.
async fn claim_and_hold(
    task: &ClaimTask,
    session: Arc<Session>,
    visibility: Duration,
    result: &mut oneshot::Sender<Result<Option<QueueItem>>>,
) -> Result<Option<QueueItem>> {
    let Some(claimed) = task.run(result).await? else {
        return Ok(None);
    };
    let ownership = Ownership::new(
        task.client.clone(),
        task.lease.clone(),
        task.claim.clone(),
        claimed.token,
    );
    QueueItem::start(ownership, claimed, session, visibility).map(Some)
}

/// Changes after which an item may be ready.
struct QueueChanges {
    items: Watch,
    claims: Watch,
}

impl QueueChanges {
    async fn open(client: &Client, keys: &QueueKeys) -> Result<Self> {
        let items = client.watch(&keys.items).prefix().filter_deletes();
        let claims = client.watch(&keys.claims).prefix().filter_puts();
        let (items, claims) = tokio::try_join!(items.into_future(), claims.into_future())?;
        Ok(Self { items, claims })
    }

    /// Waits until an item was pushed or given back. Returns `false` if the watches have ended in a way that requires new
    /// ones.
    async fn next(&mut self) -> Result<bool> {
        loop {
            let event = tokio::select! {
                event = self.items.next() => event,
                event = self.claims.next() => event,
            };
            match event {
                // A take writes its item, which is no reason to read the queue.
                Some(WatchEvent::Events(events)) => {
                    if events
                        .iter()
                        .any(|event| event.is_create() || event.is_delete())
                    {
                        return Ok(true);
                    }
                }
                Some(WatchEvent::Ended(
                    WatchEnd::Compacted { .. } | WatchEnd::RevisionRegressed { .. },
                ))
                | None => return Ok(false),
                Some(WatchEvent::Ended(end)) => return Err(end.to_error()),
                Some(_) => {}
            }
        }
    }
}
