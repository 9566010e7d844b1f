//! Watching typed values.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use actix::{Message, Recipient};
use bytes::Bytes;
use tokio_stream::Stream;

use super::{Decoded, Entry, Listing, TypedList, Undecoded, typed_entry::decode_entry};
use crate::{
    client::{
        Client,
        subscription::{Subscription, subscribe},
    },
    error::{Error, Result},
    kv::KeyValue,
    layers::codec::Codec,
    proto::Event,
    request::{EtcdRequest, ResponseFuture},
    retry::availability::attempt_until_available,
    watch::{
        Freshness, Resynced, RevisionEvents, Watch, WatchEnd, WatchEvent, WatchRequest, watch_keys,
    },
};

/// A request to watch typed values: awaiting it returns a [`TypedWatch`], [`deliver_to`](Self::deliver_to) delivers the
/// events to an actor. Without a client, `deliver_to` returns a message to the actor [`Etcd`](crate::Etcd).
///
/// Fails as a [`WatchRequest`] does, and with [`list_first`](Self::list_first) as a [`TypedList`].
#[must_use = "a watch is opened when its request is awaited"]
pub struct TypedWatchRequest<T, C, H = ()> {
    watch: WatchRequest,
    prefix: Bytes,
    /// The only key to watch.
    key: Option<Bytes>,
    list_first: bool,
    client: H,
    types: PhantomData<fn() -> (T, C)>,
}

impl<T, C, H> TypedWatchRequest<T, C, H> {
    pub(super) fn new(prefix: &Bytes, key: Option<Bytes>, client: H) -> Self {
        let watch = match &key {
            Some(key) => watch_keys(key),
            None => watch_keys(prefix).prefix(),
        };
        Self {
            watch,
            prefix: prefix.clone(),
            key,
            list_first: false,
            client,
            types: PhantomData,
        }
    }

    /// Sets options of the underlying watch that have no method here, for example
    /// `.options(|watch| watch.hedged().status_events())`. The range must not be changed.
    pub fn options(mut self, set: impl FnOnce(WatchRequest) -> WatchRequest) -> Self {
        self.watch = set(self.watch);
        self
    }

    /// Sets the first revision to deliver. With [`list_first`](Self::list_first), the request fails with
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument). Default: 0, which means from now on.
    pub fn start_revision(self, revision: i64) -> Self {
        self.options(|watch| watch.start_revision(revision))
    }

    /// Adds the previous value to each change. Default: not added.
    pub fn previous(self) -> Self {
        self.options(WatchRequest::prev_kv)
    }

    /// Continues after a compaction or a restore of the cluster with [`TypedWatchEvent::Resynced`]; see
    /// [`WatchRequest::resync`]. Default: the watch ends.
    pub fn resync(self) -> Self {
        self.options(WatchRequest::resync)
    }

    /// Waits without a deadline until a member creates the watch and, with [`list_first`](Self::list_first), the keys
    /// are read; see [`WatchRequest::wait`]. Default: fails after the client's `request_timeout`.
    pub fn wait(self) -> Self {
        self.options(WatchRequest::wait)
    }

    /// Lists the keys first: [`TypedWatchEvent::Listed`] is the first item, and the changes after its revision follow
    /// without a gap. Default: changes only.
    pub fn list_first(mut self) -> Self {
        self.list_first = true;
        self
    }
}

impl<T, C> TypedWatchRequest<T, C> {
    /// Binds the request to a client.
    pub fn on(self, client: &Client) -> TypedWatchRequest<T, C, Client> {
        TypedWatchRequest {
            watch: self.watch,
            prefix: self.prefix,
            key: self.key,
            list_first: self.list_first,
            client: client.clone(),
            types: PhantomData,
        }
    }

    /// Returns a message to the actor [`Etcd`](crate::Etcd), which opens the watch and sends its events to `recipient`.
    pub fn deliver_to(self, recipient: Recipient<TypedWatchEvent<T>>) -> SubscribeTyped<T, C>
    where
        T: Send + 'static,
    {
        SubscribeTyped {
            watch: self,
            recipient,
        }
    }
}

impl<T: Send + 'static, C: Codec<T>> TypedWatchRequest<T, C, Client> {
    /// Opens the watch and sends its events to an actor, each one when the actor has handled the previous one. The
    /// delivery ends with the watch, with the actor, with the client, or when the subscription is dropped. Fails as
    /// awaiting the request does.
    pub async fn deliver_to(
        self,
        recipient: Recipient<TypedWatchEvent<T>>,
    ) -> Result<Subscription> {
        let client = self.client.clone();
        let watch = self.await?;
        let ended = TypedWatchEvent::Ended(WatchEnd::Shutdown);
        Ok(subscribe(&client, watch, recipient, Some(ended)))
    }

    async fn open(self) -> Result<TypedWatch<T, C>> {
        if self.list_first && self.watch.has_start_revision() {
            return Err(Error::invalid(
                "`list_first` cannot be combined with `start_revision`: the watch begins after the list",
            ));
        }
        let wait = self.watch.is_waiting();
        // Opened first: a watch from a past revision would be slower.
        let watch = self.watch.on(&self.client).await?;
        let mut listed = None;
        if self.list_first {
            let list = TypedList::<T, C, Client>::of_keys(&self.prefix, self.key, self.client);
            let attempt = || list.clone().into_future();
            listed = Some(attempt_until_available(wait, attempt).await?);
        }
        Ok(TypedWatch {
            watch,
            prefix_len: self.prefix.len(),
            listed_revision: listed.as_ref().map_or(0, |listed| listed.revision),
            listed,
            types: PhantomData,
        })
    }
}

impl<T: Send + 'static, C: Codec<T>> IntoFuture for TypedWatchRequest<T, C, Client> {
    type Output = Result<TypedWatch<T, C>>;
    type IntoFuture = ResponseFuture<TypedWatch<T, C>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl<T, C, H: Clone> Clone for TypedWatchRequest<T, C, H> {
    fn clone(&self) -> Self {
        Self {
            watch: self.watch.clone(),
            prefix: self.prefix.clone(),
            key: self.key.clone(),
            list_first: self.list_first,
            client: self.client.clone(),
            types: PhantomData,
        }
    }
}

impl<T, C, H> fmt::Debug for TypedWatchRequest<T, C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedWatchRequest")
            .field("watch", &self.watch)
            .field("list_first", &self.list_first)
            .finish_non_exhaustive()
    }
}

/// An item of a [`TypedWatch`]. The last item is always [`Ended`](Self::Ended), exactly once.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TypedWatchEvent<T> {
    /// All keys. The first item with [`list_first`](TypedWatchRequest::list_first).
    Listed(Listing<T>),
    /// All changes of one revision.
    Changed(TypedChanges<T>),
    /// The next revisions were compacted, or the cluster was restored from an old backup; this is the sum of the
    /// changes. Sent only with [`resync`](TypedWatchRequest::resync).
    Resynced(TypedResynced<T>),
    /// An item of the underlying watch without keys, such as progress.
    Status(WatchEvent),
    /// The watch ended, for this reason. No item follows.
    Ended(WatchEnd),
}

impl<T: Send + 'static> Message for TypedWatchEvent<T> {
    type Result = ();
}

/// All changes of one revision.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TypedChanges<T> {
    /// The revision.
    pub revision: i64,
    /// The changes, at least one.
    pub changes: Vec<KeyChanged<T>>,
}

/// A change of one key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum KeyChanged<T> {
    /// The key was written. The value may not decode.
    Put {
        /// The key as it is now.
        entry: Decoded<T>,
        /// The key before, if it existed and [`previous`](TypedWatchRequest::previous) was requested.
        previous: Option<Decoded<T>>,
    },
    /// The key was deleted, by a request or with its lease.
    Deleted {
        /// The whole key, with the prefix.
        key: Bytes,
        /// Revision of the deletion.
        mod_revision: i64,
        /// The key before, if [`previous`](TypedWatchRequest::previous) was requested.
        previous: Option<Decoded<T>>,
    },
}

impl<T> KeyChanged<T> {
    /// Returns the whole key, with the prefix.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put {
                entry: Ok(Entry { key, .. }) | Err(Undecoded { key, .. }),
                ..
            }
            | Self::Deleted { key, .. } => key,
        }
    }

    /// Returns the entry if the key was written and its value was decoded.
    pub fn entry(&self) -> Option<&Entry<T>> {
        match self {
            Self::Put { entry, .. } => entry.as_ref().ok(),
            Self::Deleted { .. } => None,
        }
    }
}

/// Sum of the changes that a watch cannot deliver one by one; see [`Resynced`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TypedResynced<T> {
    /// Revision at which the keys were read.
    pub revision: i64,
    /// New keys.
    pub created: Vec<Decoded<T>>,
    /// Keys that were written, or deleted and created again.
    pub changed: Vec<Decoded<T>>,
    /// Deleted keys, with the prefix, sorted.
    pub deleted: Vec<Bytes>,
}

/// An open watch of typed values: a stream of [`TypedWatchEvent`]s that continues over any number of reconnects.
/// Dropping it cancels the watch on the server.
#[must_use = "a dropped watch is cancelled"]
pub struct TypedWatch<T, C> {
    watch: Watch,
    prefix_len: usize,
    listed: Option<Listing<T>>,
    /// Changes up to this revision are in the list.
    listed_revision: i64,
    types: PhantomData<fn() -> C>,
}

impl<T, C: Codec<T>> TypedWatch<T, C> {
    /// Waits for the next item. Returns `None` after [`TypedWatchEvent::Ended`].
    pub async fn next(&mut self) -> Option<TypedWatchEvent<T>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Returns the revision up to which everything was read from this stream. A new watch continues here with
    /// `start_revision(revision + 1)`.
    pub fn revision(&self) -> i64 {
        self.watch.revision().max(self.listed_revision)
    }

    /// Returns how complete the watch is; see [`Watch::freshness`].
    pub fn freshness(&self) -> Freshness {
        self.watch.freshness()
    }

    /// Cancels the watch on the server. Items that have arrived can still be read, then [`TypedWatchEvent::Ended`].
    pub fn cancel(&self) {
        self.watch.cancel();
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<TypedWatchEvent<T>>> {
        if let Some(listed) = self.listed.take() {
            return Poll::Ready(Some(TypedWatchEvent::Listed(listed)));
        }
        loop {
            let event = match std::task::ready!(Pin::new(&mut self.watch).poll_next(cx)) {
                None => return Poll::Ready(None),
                Some(WatchEvent::Events(events)) if events.revision() <= self.listed_revision => {
                    continue;
                }
                Some(WatchEvent::Events(events)) => TypedWatchEvent::Changed(self.changes(&events)),
                // The list is newer, so the consumer has these changes.
                Some(WatchEvent::Resynced(resynced))
                    if !resynced.restored && resynced.revision <= self.listed_revision =>
                {
                    continue;
                }
                Some(WatchEvent::Resynced(resynced)) => {
                    if resynced.restored {
                        // New revisions may be lower than that of the list.
                        self.listed_revision = 0;
                    }
                    TypedWatchEvent::Resynced(self.resynced(*resynced))
                }
                Some(WatchEvent::Ended(end)) => TypedWatchEvent::Ended(end),
                Some(status) => TypedWatchEvent::Status(status),
            };
            return Poll::Ready(Some(event));
        }
    }

    fn changes(&self, events: &RevisionEvents) -> TypedChanges<T> {
        TypedChanges {
            revision: events.revision(),
            changes: events.iter().map(|event| self.change(event)).collect(),
        }
    }

    fn change(&self, event: &Event) -> KeyChanged<T> {
        let kv = event.kv.clone().unwrap_or_default();
        let previous = event.prev_kv.as_deref().map(|kv| self.decode(kv.clone()));
        if event.is_put() {
            let entry = self.decode(kv);
            return KeyChanged::Put { entry, previous };
        }
        KeyChanged::Deleted {
            key: kv.key,
            mod_revision: kv.mod_revision,
            previous,
        }
    }

    fn resynced(&self, resynced: Resynced) -> TypedResynced<T> {
        let decode = |kvs: Vec<KeyValue>| kvs.into_iter().map(|kv| self.decode(kv)).collect();
        TypedResynced {
            revision: resynced.revision,
            created: decode(resynced.created),
            changed: decode(resynced.changed),
            deleted: resynced.deleted,
        }
    }

    fn decode(&self, kv: KeyValue) -> Decoded<T> {
        decode_entry::<T, C>(kv, self.prefix_len)
    }
}

impl<T, C> Unpin for TypedWatch<T, C> {}

impl<T, C: Codec<T>> Stream for TypedWatch<T, C> {
    type Item = TypedWatchEvent<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }
}

impl<T, C> fmt::Debug for TypedWatch<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedWatch")
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

/// A message to the actor [`Etcd`](crate::Etcd) that sends typed values, and each change of them, to another actor:
/// `etcd.send(typed::<User, Json>("users/").list_and_watch().deliver_to(recipient))`. The response is a
/// [`Subscription`].
///
/// Sent with `do_send`, the delivery continues until the actor stops or the client is shut down.
#[derive(Message)]
#[rtype(result = "Result<Subscription>")]
pub struct SubscribeTyped<T: Send + 'static, C> {
    watch: TypedWatchRequest<T, C>,
    recipient: Recipient<TypedWatchEvent<T>>,
}

impl<T: Send + 'static, C> Clone for SubscribeTyped<T, C> {
    fn clone(&self) -> Self {
        Self {
            watch: self.watch.clone(),
            recipient: self.recipient.clone(),
        }
    }
}

impl<T: Send + 'static, C: Codec<T>> EtcdRequest<Client> for SubscribeTyped<T, C> {
    type Response = Subscription;

    fn name(&self) -> &'static str {
        "SubscribeTyped"
    }

    fn send_with(self, client: &Client) -> ResponseFuture<Subscription> {
        Box::pin(self.watch.on(client).deliver_to(self.recipient))
    }

    fn discard(self, subscription: Subscription) {
        subscription.detach();
    }
}
