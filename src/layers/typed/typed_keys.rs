//! The keys with a prefix, as values of one type.

use std::{fmt, marker::PhantomData};

use bytes::Bytes;

use super::{
    Entry, TypedChange, TypedCreate, TypedGet, TypedList, TypedModify, TypedPut, TypedRemove,
    TypedUpdate, TypedWatchRequest,
};
use crate::{client::Client, layers::codec::Codec, request::IntoBytes};

/// The keys with a prefix, whose values are of the type `T` in the encoding `C`. See [`typed`](super).
///
/// Each method takes an *id*: the key without the prefix. Without a client (`Typed<T, C>`), the methods return messages
/// to the actor [`Etcd`](crate::Etcd).
pub struct Typed<T, C, H = ()> {
    prefix: Bytes,
    client: H,
    types: PhantomData<fn() -> (T, C)>,
}

/// Selects the keys with a prefix, without a client: the methods return messages to the actor [`Etcd`](crate::Etcd).
pub fn typed<T, C: Codec<T>>(prefix: impl IntoBytes) -> Typed<T, C> {
    Typed {
        prefix: prefix.into_bytes(),
        client: (),
        types: PhantomData,
    }
}

impl Client {
    /// Selects the keys with a prefix, whose values are of the type `T` in the encoding `C`, for example
    /// [`Json`](crate::layers::codec). See [`typed`](super).
    pub fn typed<T, C: Codec<T>>(&self, prefix: impl IntoBytes) -> Typed<T, C, Self> {
        typed(prefix).on(self)
    }
}

impl<T, C> Typed<T, C> {
    /// Binds the keys to a client.
    pub fn on(self, client: &Client) -> Typed<T, C, Client> {
        Typed {
            prefix: self.prefix,
            client: client.clone(),
            types: PhantomData,
        }
    }
}

impl<T, C, H> Typed<T, C, H> {
    /// Returns the prefix.
    pub fn prefix(&self) -> &Bytes {
        &self.prefix
    }

    /// Returns the whole key of an id.
    pub fn key(&self, id: impl IntoBytes) -> Bytes {
        [&self.prefix[..], &id.into_bytes()].concat().into()
    }
}

impl<T, C: Codec<T>, H: Clone> Typed<T, C, H> {
    /// Reads a key: `None` if it does not exist. Fails with [`CodecFailed`](crate::ErrorKind::CodecFailed) if the value
    /// does not decode.
    pub fn get(&self, id: impl IntoBytes) -> TypedGet<T, C, H> {
        TypedGet::new(&self.prefix, self.key(id), self.client.clone())
    }

    /// Reads all keys, at one revision and in the order of keys. A value that does not decode is an item of the list.
    pub fn list(&self) -> TypedList<T, C, H> {
        TypedList::new(&self.prefix, self.client.clone())
    }

    /// Writes a key if it does not exist, exactly once. Fails with [`CodecFailed`](crate::ErrorKind::CodecFailed), and
    /// sends nothing, if the value cannot be encoded.
    pub fn create(&self, id: impl IntoBytes, value: &T) -> TypedCreate<T, C, H> {
        TypedCreate::new(&self.prefix, &self.key(id), value, self.client.clone())
    }

    /// Writes the value of an entry back if the key has not changed since the entry was read, exactly once. The key
    /// keeps its lease, unless you set another one. Fails with [`CodecFailed`](crate::ErrorKind::CodecFailed), and sends
    /// nothing, if the value cannot be encoded.
    pub fn update(&self, entry: &Entry<T>) -> TypedUpdate<T, C, H> {
        TypedUpdate::new(&self.prefix, entry, self.client.clone())
    }

    /// Deletes the key of an entry if it has not changed since the entry was read, exactly once.
    pub fn remove(&self, entry: &Entry<T>) -> TypedRemove<T, C, H> {
        TypedRemove::new(&self.prefix, entry, self.client.clone())
    }

    /// Writes a key, whether it exists or not, exactly once. Fails with
    /// [`CodecFailed`](crate::ErrorKind::CodecFailed), and sends nothing, if the value cannot be encoded.
    pub fn put(&self, id: impl IntoBytes, value: &T) -> TypedPut<T, C, H> {
        TypedPut::new(&self.prefix, &self.key(id), value, self.client.clone())
    }

    /// Reads a key, passes its value to a function, and writes the result back if the key has not changed meanwhile.
    /// Otherwise starts again. The change is applied exactly once.
    ///
    /// The function gets `None` if the key does not exist. It returns the new value, or a [`TypedChange`]. It may be
    /// called several times, and only the result of the last call is written.
    ///
    /// Fails with [`CodecFailed`](crate::ErrorKind::CodecFailed), and writes nothing, if the current value does not decode
    /// or the new one cannot be encoded, and with [`Conflict`](crate::ErrorKind::Conflict) if the key changed in every
    /// attempt.
    pub fn modify<F, R>(&self, id: impl IntoBytes, function: F) -> TypedModify<T, C, H>
    where
        F: Fn(Option<T>) -> R + Send + Sync + 'static,
        R: Into<TypedChange<T>>,
    {
        TypedModify::new(&self.prefix, self.key(id), function, self.client.clone())
    }

    /// Watches all keys. A value that does not decode is an item, and the watch continues.
    pub fn watch(&self) -> TypedWatchRequest<T, C, H> {
        TypedWatchRequest::new(&self.prefix, None, self.client.clone())
    }

    /// Watches one key. Like [`watch`](Self::watch) otherwise.
    pub fn watch_id(&self, id: impl IntoBytes) -> TypedWatchRequest<T, C, H> {
        TypedWatchRequest::new(&self.prefix, Some(self.key(id)), self.client.clone())
    }

    /// Lists all keys, then watches them without a gap: the first item of the watch is the list.
    pub fn list_and_watch(&self) -> TypedWatchRequest<T, C, H> {
        self.watch().list_first()
    }
}

impl<T, C, H: Clone> Clone for Typed<T, C, H> {
    fn clone(&self) -> Self {
        Self {
            prefix: self.prefix.clone(),
            client: self.client.clone(),
            types: PhantomData,
        }
    }
}

impl<T, C, H> fmt::Debug for Typed<T, C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed")
            .field("prefix", &self.prefix)
            .field("type", &std::any::type_name::<T>())
            .finish_non_exhaustive()
    }
}
