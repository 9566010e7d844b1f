//! One key-value of a cache, in one allocation.
//!
//! An entry is copied from the response it arrived in: a shared slice would keep the whole response allocated. The
//! numbers are stored as varints, so that they take a few bytes.
//!
//! ```text
//! key length │ key │ create revision │ mod revision │ version │ lease │ value
//! ```

use std::{
    fmt,
    str::{Utf8Error, from_utf8},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    error::Result,
    kv::KeyValue,
    layers::codec::{self, Codec},
};

/// Memory per entry besides its bytes: the counters and the size of the allocation, rounding, and the place in the tree.
const ENTRY_OVERHEAD: usize = 56;

/// A key-value of a cache. Clones are cheap and keep the key-value as it was.
#[derive(Clone, PartialEq, Eq)]
pub struct CacheEntry(Arc<[u8]>);

impl CacheEntry {
    /// Copies a key-value. `buffer` is reused by the caller.
    pub(super) fn new(kv: &KeyValue, buffer: &mut Vec<u8>) -> Self {
        Self::encode(kv, buffer);
        Self::of_encoding(buffer)
    }

    /// Replaces the contents of a buffer by the encoding of a key-value.
    pub(super) fn encode(kv: &KeyValue, buffer: &mut Vec<u8>) {
        buffer.clear();
        push_number(buffer, kv.key.len() as u64);
        buffer.extend_from_slice(&kv.key);
        for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
            push_number(buffer, number.cast_unsigned());
        }
        buffer.extend_from_slice(&kv.value);
    }

    /// Returns the entry that [`encode`](Self::encode) has written.
    pub(super) fn of_encoding(encoded: &[u8]) -> Self {
        Self(Arc::from(encoded))
    }

    /// Returns the entry with this encoding, or `None` if it is not complete.
    pub(super) fn from_encoded(encoded: &[u8]) -> Option<Self> {
        let mut rest = encoded;
        let key_length = usize::try_from(take_number(&mut rest)?).ok()?;
        rest = rest.get(key_length..)?;
        for _ in 0..4 {
            take_number(&mut rest)?;
        }
        Some(Self(Arc::from(encoded)))
    }

    pub(super) fn encoded(&self) -> &[u8] {
        &self.0
    }

    /// Returns about how much memory the entry takes in a cache.
    pub(super) fn memory(&self) -> usize {
        self.0.len() + ENTRY_OVERHEAD
    }

    /// Returns whether this is the same allocation, and so the same key-value.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        let mut rest = &self.0[..];
        let length = next_number(&mut rest);
        usize::try_from(length)
            .ok()
            .and_then(|length| rest.get(..length))
            .unwrap_or_default()
    }

    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        self.numbers_and_value().1
    }

    /// Returns the key as text. Fails if it is not valid UTF-8.
    pub fn key_str(&self) -> Result<&str, Utf8Error> {
        from_utf8(self.key())
    }

    /// Returns the value as text. Fails if it is not valid UTF-8.
    pub fn value_str(&self) -> Result<&str, Utf8Error> {
        from_utf8(self.value())
    }

    /// Decodes the value. Fails with [`ErrorKind::CodecFailed`](crate::ErrorKind::CodecFailed), which names the key.
    pub fn decode<T, C: Codec<T>>(&self) -> Result<T> {
        codec::decode::<T, C>(self.key(), self.value())
    }

    /// Returns the revision at which the key was created.
    pub fn create_revision(&self) -> i64 {
        self.numbers_and_value().0[0]
    }

    /// Returns the revision of the last change of the key.
    pub fn mod_revision(&self) -> i64 {
        self.numbers_and_value().0[1]
    }

    /// Returns the number of writes since the key was created.
    pub fn version(&self) -> i64 {
        self.numbers_and_value().0[2]
    }

    /// Returns the id of the lease that the key is attached to; 0 if there is none.
    pub fn lease(&self) -> i64 {
        self.numbers_and_value().0[3]
    }

    /// Copies the entry into a [`KeyValue`].
    pub fn to_key_value(&self) -> KeyValue {
        let ([create_revision, mod_revision, version, lease], value) = self.numbers_and_value();
        KeyValue {
            key: Bytes::copy_from_slice(self.key()),
            value: Bytes::copy_from_slice(value),
            create_revision,
            mod_revision,
            version,
            lease,
        }
    }

    fn numbers_and_value(&self) -> ([i64; 4], &[u8]) {
        let mut rest = &self.0[..];
        let key_length = usize::try_from(next_number(&mut rest)).unwrap_or(usize::MAX);
        rest = rest.get(key_length..).unwrap_or_default();
        let numbers = [(); 4].map(|()| next_number(&mut rest).cast_signed());
        (numbers, rest)
    }
}

impl fmt::Debug for CacheEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheEntry")
            .field("key", &format_args!("{}", self.key().escape_ascii()))
            .field("value_length", &self.value().len())
            .field("mod_revision", &self.mod_revision())
            .finish_non_exhaustive()
    }
}

fn push_number(buffer: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        buffer.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    buffer.push((number & 0x7f) as u8);
}

/// Removes a varint from the front. Returns `None` if it is not complete or too long.
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if *first < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Like [`take_number`], for bytes that an entry was built from.
fn next_number(bytes: &mut &[u8]) -> u64 {
    take_number(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entry_has_all_fields_of_its_key_value(
            key in prop::collection::vec(any::<u8>(), 0..300),
            value in prop::collection::vec(any::<u8>(), 0..300),
            numbers in prop::array::uniform4(any::<i64>()),
        ) {
            let kv = KeyValue {
                key: key.into(),
                value: value.into(),
                create_revision: numbers[0],
                mod_revision: numbers[1],
                version: numbers[2],
                lease: numbers[3],
            };
            let entry = CacheEntry::new(&kv, &mut Vec::new());
            prop_assert_eq!(&entry.to_key_value(), &kv);
            prop_assert_eq!(CacheEntry::from_encoded(entry.encoded()), Some(entry.clone()));
            let short = entry.encoded().len() - kv.value.len() - 1;
            prop_assert_eq!(CacheEntry::from_encoded(&entry.encoded()[..short]), None);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(entry) = CacheEntry::from_encoded(&bytes) {
                prop_assert!(entry.key().len() + entry.value().len() < bytes.len());
            }
        }
    }
}
