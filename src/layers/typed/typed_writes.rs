//! Writing typed values. The writes are those of [`conditional_write`](crate::layers::conditional_write).

use std::time::Duration;

use bytes::Bytes;

use super::{Decoded, Entry, typed_entry::decode_entry, typed_request::typed_request};
use crate::{
    client::Client,
    error::{Error, Result},
    kv::{KeyValue, Put, put, txn},
    layers::{
        codec::{Codec, encode},
        conditional_write::{
            Change, Create, CreateOutcome, Modify, ModifyOutcome, Remove, RemoveOutcome, Update,
            UpdateOutcome, create, modify, remove, update,
        },
        exactly_once::{Fence, Fences, MarkedWrite},
    },
    proto::rpc,
};

typed_request!(
    /// Writes a key if it does not exist; see [`Typed::create`](super::Typed::create). Without a client, it is a message
    /// to the actor [`Etcd`](crate::Etcd).
    TypedCreate(Create) -> TypedCreateOutcome<T>, send_create
);

typed_request!(
    /// Writes an entry back; see [`Typed::update`](super::Typed::update). Without a client, it is a message to the actor
    /// [`Etcd`](crate::Etcd).
    TypedUpdate(Update) -> TypedUpdateOutcome<T>, send_update
);

typed_request!(
    /// Deletes the key of an entry; see [`Typed::remove`](super::Typed::remove). Without a client, it is a message to the
    /// actor [`Etcd`](crate::Etcd).
    TypedRemove(Remove) -> TypedRemoveOutcome<T>, send_remove
);

typed_request!(
    /// Changes a key by a function; see [`Typed::modify`](super::Typed::modify). Without a client, it is a message to the
    /// actor [`Etcd`](crate::Etcd).
    TypedModify(Modify) -> TypedModifyOutcome<T>, send_modify
);

typed_request!(
    /// Writes a key; see [`Typed::put`](super::Typed::put). Returns the revision of the write. Without a client, it is a
    /// message to the actor [`Etcd`](crate::Etcd).
    TypedPut(PutOnce) -> i64, send_put
);

/// A put, and how it is sent.
#[derive(Debug, Clone)]
struct PutOnce {
    put: Put,
    fences: Fences,
    without_marker: bool,
}

impl PutOnce {
    fn lease(mut self, lease: i64) -> Self {
        self.put = self.put.lease(lease);
        self
    }

    fn fenced_by(mut self, fence: &impl Fence) -> Self {
        self.fences.add(fence);
        self
    }

    fn without_marker(mut self) -> Self {
        self.without_marker = true;
        self
    }
}

macro_rules! write_options {
    ($($request:ident),*) => {
        $(impl<T, C, H> $request<T, C, H> {
            /// Applies the write only while this lock or leadership is held. Otherwise it fails with
            /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost), and nothing is written. Can be called several times.
            /// Default: no such condition.
            pub fn fenced_by(self, fence: &impl Fence) -> Self {
                self.map_inner(|write| write.fenced_by(fence))
            }

            /// Sends a plain transaction, which costs less. If its response is lost, the error has the outcome
            /// [`Unknown`](crate::Outcome::Unknown). Default: the write is applied
            /// [exactly once](crate::layers::exactly_once), or surely not.
            pub fn without_marker(self) -> Self {
                self.map_inner(|write| write.without_marker())
            }
        })*
    };
}

write_options!(TypedCreate, TypedUpdate, TypedRemove, TypedModify, TypedPut);

/// Sets the lease of a write.
macro_rules! lease_option {
    ($request:ident, $doc:literal) => {
        impl<T, C, H> $request<T, C, H> {
            #[doc = $doc]
            pub fn lease(self, lease: impl Into<i64>) -> Self {
                self.map_inner(|write| write.lease(lease.into()))
            }
        }
    };
}

lease_option!(
    TypedCreate,
    "Attaches the key to a lease: etcd deletes the key when the lease ends. Default: no lease."
);
lease_option!(
    TypedPut,
    "Attaches the key to a lease: etcd deletes the key when the lease ends. Default: no lease, also if the key had one."
);
lease_option!(
    TypedUpdate,
    "Attaches the key to this lease, or with 0 to none. Default: the key keeps its lease."
);
lease_option!(
    TypedModify,
    "Attaches the key to this lease, or with 0 to none. Default: a key that exists keeps its lease, and one that is \
     created has none."
);

impl<T, C: Codec<T>, H> TypedCreate<T, C, H> {
    pub(super) fn new(prefix: &Bytes, key: &Bytes, value: &T, client: H) -> Self {
        let value = encode::<T, C>(key, value);
        Self::of(prefix, value.map(|value| create(key, value)), client)
    }
}

impl<T, C: Codec<T>, H> TypedPut<T, C, H> {
    pub(super) fn new(prefix: &Bytes, key: &Bytes, value: &T, client: H) -> Self {
        let value = encode::<T, C>(key, value);
        let put = value.map(|value| PutOnce {
            put: put(key, value),
            fences: Fences::default(),
            without_marker: false,
        });
        Self::of(prefix, put, client)
    }
}

impl<T, C: Codec<T>, H> TypedUpdate<T, C, H> {
    pub(super) fn new(prefix: &Bytes, entry: &Entry<T>, client: H) -> Self {
        let value = own_key(prefix, entry).and_then(|key| encode::<T, C>(key, &entry.value));
        let update = value.map(|value| update(&entry.key, value).at(entry.mod_revision));
        Self::of(prefix, update, client)
    }
}

impl<T, C, H> TypedRemove<T, C, H> {
    pub(super) fn new(prefix: &Bytes, entry: &Entry<T>, client: H) -> Self {
        let remove = own_key(prefix, entry).map(|key| remove(key).at(entry.mod_revision));
        Self::of(prefix, remove, client)
    }
}

impl<T, C: Codec<T>, H> TypedModify<T, C, H> {
    pub(super) fn new<F, R>(prefix: &Bytes, key: Bytes, function: F, client: H) -> Self
    where
        F: Fn(Option<T>) -> R + Send + Sync + 'static,
        R: Into<TypedChange<T>>,
    {
        let own_key = key.clone();
        let change = move |current: Option<&KeyValue>| -> Result<Change> {
            let decode = |kv: &KeyValue| crate::layers::codec::decode::<T, C>(&kv.key, &kv.value);
            match function(current.map(decode).transpose()?).into() {
                TypedChange::Put(value) => Ok(Change::Put(encode::<T, C>(&own_key, &value)?)),
                TypedChange::Remove => Ok(Change::Remove),
                TypedChange::Keep => Ok(Change::Keep),
                TypedChange::Fail(error) => Err(error),
            }
        };
        Self::of(prefix, Ok(modify(key, change)), client)
    }
}

impl<T, C, H> TypedModify<T, C, H> {
    /// Largest number of attempts, at least 1. The timeout limits them as well. Default: 100.
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.map_inner(|modify| modify.max_attempts(attempts))
    }
}

/// Returns the key of an entry. Fails if the entry was read with another prefix.
fn own_key<'a, T>(prefix: &Bytes, entry: &'a Entry<T>) -> Result<&'a Bytes> {
    if entry.key.starts_with(prefix) {
        return Ok(&entry.key);
    }
    Err(Error::invalid(format!(
        "the entry `{}` does not have the prefix `{}`; write it with the `Typed` that it was read with",
        entry.key.escape_ascii(),
        prefix.escape_ascii()
    )))
}

/// What the function of [`Typed::modify`](super::Typed::modify) does with a key. A value converts into `Put`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TypedChange<T> {
    /// Writes this value.
    Put(T),
    /// Removes the key.
    Remove,
    /// Leaves the key as it is.
    Keep,
    /// Writes nothing, and fails with this error.
    Fail(Error),
}

impl<T> From<T> for TypedChange<T> {
    fn from(value: T) -> Self {
        Self::Put(value)
    }
}

/// What became of a [`TypedCreate`].
#[derive(Debug, Clone)]
pub enum TypedCreateOutcome<T> {
    /// The key was created.
    Created {
        /// The revision of the write, which is the create and mod revision of the key.
        revision: i64,
    },
    /// The key exists. Nothing was written.
    Exists(Decoded<T>),
}

/// What became of a [`TypedUpdate`].
#[derive(Debug, Clone)]
pub enum TypedUpdateOutcome<T> {
    /// The key was updated.
    Updated {
        /// The revision of the write, which is the mod revision of the key.
        revision: i64,
    },
    /// The key was changed since the entry was read, or does not exist (`None`). Nothing was written.
    Conflict(Option<Decoded<T>>),
}

/// What became of a [`TypedRemove`].
#[derive(Debug, Clone)]
pub enum TypedRemoveOutcome<T> {
    /// The key was removed.
    Removed {
        /// The revision of the removal.
        revision: i64,
    },
    /// The key was changed since the entry was read, or does not exist (`None`). Nothing was removed.
    Conflict(Option<Decoded<T>>),
}

/// What became of a [`TypedModify`].
#[derive(Debug, Clone)]
pub enum TypedModifyOutcome<T> {
    /// The key was written.
    Written {
        /// The revision of the write, which is the mod revision of the key.
        revision: i64,
    },
    /// The key was removed.
    Removed {
        /// The revision of the removal.
        revision: i64,
    },
    /// The function returned [`TypedChange::Keep`], or it removed a key that does not exist. Contains the key as it was
    /// read.
    Kept(Option<Decoded<T>>),
}

impl<T> TypedCreateOutcome<T> {
    /// Returns the revision of the write, or `None` if the key exists.
    pub fn revision(&self) -> Option<i64> {
        match self {
            Self::Created { revision } => Some(*revision),
            Self::Exists(_) => None,
        }
    }
}

impl<T> TypedUpdateOutcome<T> {
    /// Returns the revision of the write, or `None` if there was a conflict.
    pub fn revision(&self) -> Option<i64> {
        match self {
            Self::Updated { revision } => Some(*revision),
            Self::Conflict(_) => None,
        }
    }
}

impl<T> TypedRemoveOutcome<T> {
    /// Returns the revision of the removal, or `None` if there was a conflict.
    pub fn revision(&self) -> Option<i64> {
        match self {
            Self::Removed { revision } => Some(*revision),
            Self::Conflict(_) => None,
        }
    }
}

impl<T> TypedModifyOutcome<T> {
    /// Returns the revision of the write or the removal, or `None` if the key was kept.
    pub fn revision(&self) -> Option<i64> {
        match self {
            Self::Written { revision } | Self::Removed { revision } => Some(*revision),
            Self::Kept(_) => None,
        }
    }
}

async fn send_create<T, C: Codec<T>>(
    create: Create,
    prefix_len: usize,
    client: &Client,
    timeout: Duration,
) -> Result<TypedCreateOutcome<T>> {
    Ok(match create.on(client).timeout(timeout).await? {
        CreateOutcome::Created { revision } => TypedCreateOutcome::Created { revision },
        CreateOutcome::Exists(kv) => {
            TypedCreateOutcome::Exists(decode_entry::<T, C>(kv, prefix_len))
        }
    })
}

async fn send_update<T, C: Codec<T>>(
    update: Update,
    prefix_len: usize,
    client: &Client,
    timeout: Duration,
) -> Result<TypedUpdateOutcome<T>> {
    Ok(match update.on(client).timeout(timeout).await? {
        UpdateOutcome::Updated { revision } => TypedUpdateOutcome::Updated { revision },
        UpdateOutcome::Conflict(kv) => {
            TypedUpdateOutcome::Conflict(kv.map(|kv| decode_entry::<T, C>(kv, prefix_len)))
        }
    })
}

async fn send_remove<T, C: Codec<T>>(
    remove: Remove,
    prefix_len: usize,
    client: &Client,
    timeout: Duration,
) -> Result<TypedRemoveOutcome<T>> {
    Ok(match remove.on(client).timeout(timeout).await? {
        RemoveOutcome::Removed { revision } => TypedRemoveOutcome::Removed { revision },
        RemoveOutcome::Conflict(kv) => {
            TypedRemoveOutcome::Conflict(kv.map(|kv| decode_entry::<T, C>(kv, prefix_len)))
        }
    })
}

async fn send_modify<T, C: Codec<T>>(
    modify: Modify,
    prefix_len: usize,
    client: &Client,
    timeout: Duration,
) -> Result<TypedModifyOutcome<T>> {
    Ok(match modify.on(client).timeout(timeout).await? {
        ModifyOutcome::Written { revision } => TypedModifyOutcome::Written { revision },
        ModifyOutcome::Removed { revision } => TypedModifyOutcome::Removed { revision },
        ModifyOutcome::Kept(kv) => {
            TypedModifyOutcome::Kept(kv.map(|kv| decode_entry::<T, C>(kv, prefix_len)))
        }
    })
}

#[expect(
    clippy::extra_unused_type_parameters,
    reason = "the same signature as the functions of other requests"
)]
async fn send_put<T, C: Codec<T>>(
    write: PutOnce,
    _prefix_len: usize,
    client: &Client,
    timeout: Duration,
) -> Result<i64> {
    let marked = MarkedWrite {
        rpc: rpc::PUT,
        txn: txn().then(write.put),
        fences: write.fences,
    };
    let applied = if write.without_marker {
        marked.send_without_marker(client, timeout).await?
    } else {
        marked.send(client, timeout).await?
    };
    Ok(applied.revision)
}
