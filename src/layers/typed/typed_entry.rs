//! Keys with decoded values, and keys whose values do not decode.

use std::fmt;

use bytes::Bytes;

use crate::{
    error::Error,
    kv::KeyValue,
    layers::codec::{Codec, decode},
};

/// A key and its decoded value.
///
/// Change `value` and pass the entry to [`Typed::update`](super::Typed::update) to write it back.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Entry<T> {
    /// The whole key, with the prefix.
    pub key: Bytes,
    /// The decoded value.
    pub value: T,
    /// Revision of the last change of the key.
    pub mod_revision: i64,
    /// Revision at which the key was created.
    pub create_revision: i64,
    /// Number of writes since the key was created.
    pub version: i64,
    /// Lease that the key is attached to; 0 for none.
    pub lease: i64,
    prefix_len: usize,
}

impl<T> Entry<T> {
    /// Returns the id: the key without the prefix.
    pub fn id(&self) -> &[u8] {
        self.key.get(self.prefix_len..).unwrap_or(&[])
    }

    /// Returns the id as text, or `None` if it is not UTF-8.
    pub fn id_str(&self) -> Option<&str> {
        std::str::from_utf8(self.id()).ok()
    }
}

/// A key whose value the codec does not decode. Converts into [`Error`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Undecoded {
    /// The whole key, with the prefix.
    pub key: Bytes,
    /// The value as it is in etcd.
    pub value: Bytes,
    /// Revision of the last change of the key.
    pub mod_revision: i64,
    /// Lease that the key is attached to; 0 for none.
    pub lease: i64,
    /// Why the value was not decoded, with the key and the type. Its kind is
    /// [`CodecFailed`](crate::ErrorKind::CodecFailed).
    pub error: Error,
    prefix_len: usize,
}

impl Undecoded {
    /// Returns the id: the key without the prefix.
    pub fn id(&self) -> &[u8] {
        self.key.get(self.prefix_len..).unwrap_or(&[])
    }

    /// Returns the id as text, or `None` if it is not UTF-8.
    pub fn id_str(&self) -> Option<&str> {
        std::str::from_utf8(self.id()).ok()
    }
}

impl fmt::Display for Undecoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (revision {})", self.error, self.mod_revision)
    }
}

impl std::error::Error for Undecoded {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<Undecoded> for Error {
    fn from(undecoded: Undecoded) -> Self {
        undecoded.error
    }
}

/// A key, decoded or not: an item of a list and of a watch.
pub type Decoded<T> = Result<Entry<T>, Undecoded>;

/// Decodes the value of a key whose prefix has this length.
pub(super) fn decode_entry<T, C: Codec<T>>(kv: KeyValue, prefix_len: usize) -> Decoded<T> {
    match decode::<T, C>(&kv.key, &kv.value) {
        Ok(value) => Ok(Entry {
            key: kv.key,
            value,
            mod_revision: kv.mod_revision,
            create_revision: kv.create_revision,
            version: kv.version,
            lease: kv.lease,
            prefix_len,
        }),
        Err(error) => Err(Undecoded {
            key: kv.key,
            value: kv.value,
            mod_revision: kv.mod_revision,
            lease: kv.lease,
            error,
            prefix_len,
        }),
    }
}
