//! Reading typed values: one key, or all keys with the prefix.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use tokio_stream::Stream;

use super::{Decoded, Entry, Undecoded, typed_entry::decode_entry, typed_request::typed_request};
use crate::{
    client::Client,
    error::Result,
    kv::{Get, KeyValueStream, get},
    layers::codec::Codec,
};

typed_request!(
    /// A request for the value of a key; see [`Typed::get`](super::Typed::get). Without a client, it is a message to the
    /// actor [`Etcd`](crate::Etcd).
    TypedGet(Get) -> Option<Entry<T>>, read_entry
);

typed_request!(
    /// A request for all keys with the prefix; see [`Typed::list`](super::Typed::list). Awaiting it returns a
    /// [`Listing`], [`stream`](TypedList::stream) reads them in constant memory. Without a client, it is a message to the
    /// actor [`Etcd`](crate::Etcd).
    TypedList(Get) -> Listing<T>, read_list
);

macro_rules! read_options {
    ($request:ident) => {
        impl<T, C, H> $request<T, C, H> {
            /// Reads the state at this revision. Default: 0, the newest.
            pub fn revision(self, revision: i64) -> Self {
                self.map_inner(|get| get.revision(revision))
            }

            /// Reads from one member without consulting the others: faster and possible without a leader, but the data may
            /// be stale. Default: linearizable, confirmed by a quorum.
            pub fn serializable(self) -> Self {
                self.map_inner(Get::serializable)
            }
        }
    };
}

read_options!(TypedGet);
read_options!(TypedList);

impl<T, C, H> TypedGet<T, C, H> {
    pub(super) fn new(prefix: &Bytes, key: Bytes, client: H) -> Self {
        Self::of(prefix, Ok(get(key)), client)
    }
}

impl<T, C, H> TypedList<T, C, H> {
    pub(super) fn new(prefix: &Bytes, client: H) -> Self {
        Self::of_keys(prefix, None, client)
    }

    /// Creates a list of one key, or of all.
    pub(super) fn of_keys(prefix: &Bytes, key: Option<Bytes>, client: H) -> Self {
        let get = match key {
            // A range of one key, because only ranges can be read as a stream.
            Some(key) => get(&key).range([&key[..], &[0]].concat()),
            None => get(prefix).prefix(),
        };
        Self::of(prefix, Ok(get), client)
    }
}

impl<T, C: Codec<T>> TypedList<T, C, Client> {
    /// Reads the keys as a stream, at one revision, in constant memory. See [`Get::stream`].
    pub fn stream(self) -> EntryStream<T, C> {
        let timeout = self.timeout.unwrap_or(self.client.request_timeout());
        // Never an error: a list has nothing to encode.
        let get = self.inner.unwrap_or_else(|_| get(Bytes::new()).prefix());
        EntryStream {
            keys: get.on(&self.client).timeout(timeout).stream(),
            prefix_len: self.prefix_len,
            types: PhantomData,
        }
    }
}

async fn read_entry<T, C: Codec<T>>(
    get: Get,
    prefix_len: usize,
    client: &Client,
    timeout: Duration,
) -> Result<Option<Entry<T>>> {
    let found = get.on(client).timeout(timeout).await?;
    let kv = found.kvs.into_iter().next();
    let entry = kv.map(|kv| decode_entry::<T, C>(kv, prefix_len));
    Ok(entry.transpose()?)
}

async fn read_list<T, C: Codec<T>>(
    get: Get,
    prefix_len: usize,
    client: &Client,
    timeout: Duration,
) -> Result<Listing<T>> {
    let mut keys = get.on(client).timeout(timeout).stream();
    let mut items = Vec::new();
    while let Some(kv) = keys.next().await {
        items.push(decode_entry::<T, C>(kv?, prefix_len));
    }
    Ok(Listing {
        revision: keys.revision().unwrap_or_default(),
        items,
    })
}

/// All keys with the prefix, at one revision.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Listing<T> {
    /// The revision of all items.
    pub revision: i64,
    /// The keys in ascending order: decoded entries, and keys whose values do not decode.
    pub items: Vec<Decoded<T>>,
}

impl<T> Listing<T> {
    /// Returns the entries that were decoded.
    pub fn entries(&self) -> impl Iterator<Item = &Entry<T>> {
        self.items.iter().filter_map(|item| item.as_ref().ok())
    }

    /// Returns the keys whose values do not decode.
    pub fn undecoded(&self) -> impl Iterator<Item = &Undecoded> {
        self.items.iter().filter_map(|item| item.as_ref().err())
    }

    /// Returns all entries, or the first key whose value does not decode.
    pub fn into_entries(self) -> Result<Vec<Entry<T>>, Undecoded> {
        self.items.into_iter().collect()
    }
}

impl<T> IntoIterator for Listing<T> {
    type Item = Decoded<T>;
    type IntoIter = std::vec::IntoIter<Decoded<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

/// A stream of all keys with the prefix in ascending order; see [`TypedList::stream`]. A value that does not decode is an
/// item (`Ok(Err(_))`); the stream ends after the last key or the first error of a request.
#[must_use = "a stream does nothing until it is read"]
pub struct EntryStream<T, C> {
    keys: KeyValueStream,
    prefix_len: usize,
    types: PhantomData<fn() -> (T, C)>,
}

impl<T, C: Codec<T>> EntryStream<T, C> {
    /// Returns the next key; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<Decoded<T>>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Returns the revision of all items, known once the first response has been read.
    pub fn revision(&self) -> Option<i64> {
        self.keys.revision()
    }
}

impl<T, C: Codec<T>> Stream for EntryStream<T, C> {
    type Item = Result<Decoded<T>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let prefix_len = self.prefix_len;
        let kv = ready!(Pin::new(&mut self.keys).poll_next(cx));
        Poll::Ready(kv.map(|kv| kv.map(|kv| decode_entry::<T, C>(kv, prefix_len))))
    }
}

impl<T, C> fmt::Debug for EntryStream<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryStream")
            .field("revision", &self.keys.revision())
            .finish_non_exhaustive()
    }
}
