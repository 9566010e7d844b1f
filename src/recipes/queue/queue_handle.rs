//! A queue and its options.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::OnceCell;

use super::{
    PushItem, QueueItem,
    next_item::{TakeOrder, next_items},
    queue_keys::QueueKeys,
    take_item::{DeadLetters, Taker},
};
use crate::{
    client::Client,
    error::{Error, Result},
    kv::KeyValue,
    recipes::session::Session,
    request::IntoBytes,
};

const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);
const DEFAULT_TTL: Duration = Duration::from_secs(10);

/// A queue in etcd. See [`Client::queue`]. Without a client (`Queue<()>`), its requests are messages to the actor
/// [`Etcd`](crate::Etcd).
///
/// The first take opens a session, which ends when the queue, its clones and all items taken with it are dropped. It
/// heals: after an outage that ended its lease, items are taken with a new one.
#[derive(Clone)]
#[must_use = "a queue does nothing until its methods are called"]
pub struct Queue<C = ()> {
    pub(super) name: Bytes,
    pub(super) options: QueueOptions,
    pub(super) client: C,
    session: Arc<OnceCell<Arc<Session>>>,
}

/// How items are taken.
#[derive(Debug, Clone)]
pub(super) struct QueueOptions {
    order: TakeOrder,
    visibility: Duration,
    ttl: Duration,
    dead_letters: Option<DeadLetters>,
    pub(super) concurrency: usize,
}

/// Returns the queue with this name, without a client: its requests are messages to the actor [`Etcd`](crate::Etcd).
pub fn queue(name: impl IntoBytes) -> Queue {
    Queue {
        name: name.into_bytes(),
        options: QueueOptions {
            order: TakeOrder::default(),
            visibility: DEFAULT_VISIBILITY,
            ttl: DEFAULT_TTL,
            dead_letters: None,
            concurrency: 1,
        },
        client: (),
        session: Arc::default(),
    }
}

impl Client {
    /// Returns the queue with this name. Sends nothing. See [`queue`](mod@crate::recipes::queue).
    ///
    /// Requests fail with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the name is empty or
    /// consists of slashes.
    pub fn queue(&self, name: impl IntoBytes) -> Queue<Self> {
        queue(name).on(self)
    }
}

impl<C> Queue<C> {
    /// Takes items with the smallest [priority](PushItem::priority) first, and of the same priority the oldest one.
    /// Default: the oldest first, whatever its priority.
    pub fn by_priority(mut self) -> Self {
        self.options.order = TakeOrder::Priority;
        self
    }

    /// Sets the visibility time-out: how long an item may be taken until it is ready for others again, unless it is
    /// [extended](QueueItem::extend). Default: 30 s.
    pub fn visibility(mut self, timeout: Duration) -> Self {
        self.options.visibility = timeout;
        self
    }

    /// Sets the TTL of the session's lease: how long after a crash of the taker its items are ready again. Set it
    /// before the first take. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Moves items that were taken this many times without being completed to another queue, instead of taking them
    /// again. That count includes takes that were dropped and items that were put back, as
    /// [`attempt`](QueueItem::attempt) does. If etcd refuses the move, an item is taken again. The name of neither queue may be below that of the other one. Default: they are taken again.
    pub fn dead_letters(mut self, after: u32, queue: impl IntoBytes) -> Self {
        self.options.dead_letters = Some(DeadLetters {
            after: after.max(1),
            name: queue.into_bytes(),
        });
        self
    }

    /// Sets how many items [`deliver_to`](Queue::deliver_to) delivers at once, at least 1. Default: 1.
    pub fn concurrency(mut self, items: usize) -> Self {
        self.options.concurrency = items.max(1);
        self
    }
}

impl<C: Clone> Queue<C> {
    /// Pushes an item.
    pub fn push(&self, value: impl IntoBytes) -> PushItem<C> {
        PushItem::new(self.name.clone(), value.into_bytes(), self.client.clone())
    }
}

impl Queue {
    /// Binds the queue to a client.
    pub fn on(self, client: &Client) -> Queue<Client> {
        Queue {
            name: self.name,
            options: self.options,
            client: client.clone(),
            session: Arc::default(),
        }
    }
}

impl Queue<Client> {
    /// Takes the next item. Waits until one is ready, also through outages and losses of the session's lease.
    ///
    /// If the future is dropped, an item that it has taken is ready again at once. Fails
    /// - if the session cannot be opened within the client's `request_timeout`,
    /// - with [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) if the session is lost for good, for example
    ///   because the client shuts down,
    /// - with [`ErrorKind::LockBlocked`](crate::ErrorKind::LockBlocked) if the line of takers begins with a key that no
    ///   taker has put; the error names the key,
    /// - with [`ErrorKind::PermissionDenied`](crate::ErrorKind::PermissionDenied) if the user may not read and write the
    ///   [keys](crate::recipes::queue#keys).
    pub async fn take(&self) -> Result<QueueItem> {
        let item = self.taker().await?.take().await?;
        Ok(item.kept_by(&self.client))
    }

    /// Takes the next item, or returns `None` if none is ready. Fails with
    /// [`ErrorKind::SessionLost`](crate::ErrorKind::SessionLost) also if the lease of the session ends meanwhile; a later
    /// call uses the next lease. See also [`take`](Self::take).
    pub async fn try_take(&self) -> Result<Option<QueueItem>> {
        let item = self.taker().await?.take_ready().await?;
        Ok(item.map(|item| item.kept_by(&self.client)))
    }

    /// Returns the item that would be taken next, without taking it.
    pub async fn peek(&self) -> Result<Option<KeyValue>> {
        let keys = QueueKeys::new(&self.name)?;
        loop {
            let next = next_items(&self.client, &keys, self.options.order).await?;
            let Some(next) = next.into_iter().next() else {
                return Ok(None);
            };
            let found = self.client.get(next.key).await?;
            // Otherwise it was completed in between.
            if let Some(kv) = found.kvs.into_iter().next() {
                return Ok(Some(kv));
            }
        }
    }

    /// Returns the number of items that are not completed, including those that are taken.
    pub async fn len(&self) -> Result<u64> {
        let keys = QueueKeys::new(&self.name)?;
        let counted = self.client.get(keys.items).prefix().count_only().await?;
        Ok(u64::try_from(counted.count).unwrap_or_default())
    }

    /// Returns whether all items are completed.
    pub async fn is_empty(&self) -> Result<bool> {
        Ok(self.len().await? == 0)
    }

    pub(super) async fn taker(&self) -> Result<Taker> {
        let QueueOptions {
            order,
            visibility,
            ref dead_letters,
            ttl,
            ..
        } = self.options;
        let keys = QueueKeys::new(&self.name)?;
        let dead_letters = dead_letters
            .as_ref()
            .map(|DeadLetters { after, name }| QueueKeys::new(name).map(|keys| (*after, keys)));
        let dead_letters = dead_letters.transpose()?;
        if dead_letters
            .as_ref()
            .is_some_and(|(_, to)| keys.overlap(to))
        {
            let reason = "the dead letters of a queue need another queue, whose name is not below that of this one";
            return Err(Error::invalid(reason));
        }
        // The session is part of the queue, also in background work. The queue's client keeps the client running.
        let client = self.client.for_background();
        let open = || async { client.session(ttl).heal().await.map(Arc::new) };
        let session = self.session.get_or_try_init(open).await?.clone();
        Ok(Taker {
            client,
            keys,
            order,
            visibility,
            dead_letters,
            session,
        })
    }

    /// Returns the queue for background work, which does not keep the client running.
    pub(super) fn for_background(self) -> Self {
        Self {
            client: self.client.for_background(),
            ..self
        }
    }
}

impl<C> fmt::Debug for Queue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
