//! A view of a cache with typed values.

use std::{fmt, marker::PhantomData, ops::RangeBounds};

use super::{Cache, CacheEntry, CacheRange};
use crate::{error::Result, layers::codec::Codec};

/// A [`Cache`] whose values are decoded when they are read. See [`Cache::typed`].
///
/// Fails with [`ErrorKind::CodecFailed`](crate::ErrorKind::CodecFailed), which names the key, if a value cannot be
/// decoded.
#[must_use = "dropping the cache ends it"]
pub struct TypedCache<T, C> {
    cache: Cache,
    types: PhantomData<fn() -> (T, C)>,
}

impl<T, C: Codec<T>> TypedCache<T, C> {
    pub(super) fn new(cache: Cache) -> Self {
        Self {
            cache,
            types: PhantomData,
        }
    }

    /// Returns the cache itself.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the value of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<T>> {
        let entry = self.cache.get(key);
        entry.map(|entry| entry.decode::<T, C>()).transpose()
    }

    /// Returns the value of a key, linearizable; see [`Cache::get_consistent`].
    pub async fn get_consistent(&self, key: impl AsRef<[u8]>) -> Result<Option<T>> {
        let entry = self.cache.get_consistent(key).await?;
        entry.map(|entry| entry.decode::<T, C>()).transpose()
    }

    /// Returns all values in the order of their keys, at one revision.
    pub fn iter(&self) -> TypedRange<T, C> {
        TypedRange::new(self.cache.iter())
    }

    /// Returns the values of a range of keys; see [`Cache::range`].
    pub fn range<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> TypedRange<T, C> {
        TypedRange::new(self.cache.range(keys))
    }

    /// Returns the values whose keys start with a prefix; see [`Cache::prefix`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> TypedRange<T, C> {
        TypedRange::new(self.cache.prefix(prefix))
    }
}

impl<T, C> Clone for TypedCache<T, C> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            types: PhantomData,
        }
    }
}

impl<T, C> fmt::Debug for TypedCache<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedCache").field(&self.cache).finish()
    }
}

impl<T, C: Codec<T>> IntoIterator for &TypedCache<T, C> {
    type Item = (CacheEntry, Result<T>);
    type IntoIter = TypedRange<T, C>;

    fn into_iter(self) -> TypedRange<T, C> {
        self.iter()
    }
}

/// Entries and their decoded values, in the order of their keys.
#[must_use = "an iterator does nothing until it is read"]
pub struct TypedRange<T, C> {
    entries: CacheRange,
    types: PhantomData<fn() -> (T, C)>,
}

impl<T, C> TypedRange<T, C> {
    fn new(entries: CacheRange) -> Self {
        Self {
            entries,
            types: PhantomData,
        }
    }
}

impl<T, C: Codec<T>> Iterator for TypedRange<T, C> {
    type Item = (CacheEntry, Result<T>);

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next()?;
        let value = entry.decode::<T, C>();
        Some((entry, value))
    }
}

impl<T, C> fmt::Debug for TypedRange<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TypedRange")
    }
}
