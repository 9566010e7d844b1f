//! One write of a bulk.

use bytes::Bytes;

use crate::{
    kv::{Op, delete, put},
    request::IntoBytes,
};

/// Bytes that a write adds to a transaction besides key and value, at most.
const OVERHEAD: usize = 32;

/// A put or a delete of one key, for [`Bulk::send`](super::Bulk::send). Also created `From` a pair of key and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkWrite {
    key: Bytes,
    change: KeyChange,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyChange {
    Put { value: Bytes, lease: i64 },
    Delete,
}

impl BulkWrite {
    /// Creates a put.
    pub fn put(key: impl IntoBytes, value: impl IntoBytes) -> Self {
        let (value, lease) = (value.into_bytes(), 0);
        Self {
            key: key.into_bytes(),
            change: KeyChange::Put { value, lease },
        }
    }

    /// Creates a delete of one key. Deleting a key that does not exist is no failure.
    pub fn delete(key: impl IntoBytes) -> Self {
        Self {
            key: key.into_bytes(),
            change: KeyChange::Delete,
        }
    }

    /// Attaches the key of a put to a lease. Has no effect on a delete. Default: no lease.
    pub fn lease(mut self, id: impl Into<i64>) -> Self {
        if let KeyChange::Put { lease, .. } = &mut self.change {
            *lease = id.into();
        }
        self
    }

    /// Returns the key.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// Returns the value; `None` for a delete.
    pub fn value(&self) -> Option<&Bytes> {
        match &self.change {
            KeyChange::Put { value, .. } => Some(value),
            KeyChange::Delete => None,
        }
    }

    pub(super) fn change(&self) -> &KeyChange {
        &self.change
    }

    /// Returns the size of key and value.
    pub(super) fn payload(&self) -> usize {
        self.key.len() + self.value().map_or(0, Bytes::len)
    }

    /// Returns the size in a transaction, or a little more.
    pub(super) fn encoded_size(&self) -> usize {
        self.payload() + OVERHEAD
    }

    pub(super) fn operation(&self) -> Op {
        match &self.change {
            KeyChange::Put { value, lease } => {
                put(self.key.clone(), value.clone()).lease(*lease).into()
            }
            KeyChange::Delete => delete(self.key.clone()).into(),
        }
    }
}

impl<K: IntoBytes, V: IntoBytes> From<(K, V)> for BulkWrite {
    fn from((key, value): (K, V)) -> Self {
        Self::put(key, value)
    }
}
