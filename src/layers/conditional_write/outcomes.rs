//! The results of conditional writes. A `match` needs no wildcard arm: there is no third result.

use crate::kv::KeyValue;

/// The result of a [`Create`](super::Create).
#[derive(Debug, Clone, PartialEq)]
pub enum CreateOutcome {
    /// The key was created.
    Created {
        /// The revision of the write, which is the create and mod revision of the key.
        revision: i64,
    },
    /// The key exists. Nothing was written.
    Exists(KeyValue),
}

/// The result of an [`Update`](super::Update).
#[derive(Debug, Clone, PartialEq)]
pub enum UpdateOutcome {
    /// The key was updated.
    Updated {
        /// The revision of the write, which is the mod revision of the key.
        revision: i64,
    },
    /// The key has another mod revision, or does not exist (`None`). Nothing was written.
    Conflict(Option<KeyValue>),
}

/// The result of a [`Remove`](super::Remove).
#[derive(Debug, Clone, PartialEq)]
pub enum RemoveOutcome {
    /// The key was removed.
    Removed {
        /// The revision of the removal.
        revision: i64,
    },
    /// The key has another mod revision, or does not exist (`None`). Nothing was removed.
    Conflict(Option<KeyValue>),
}

/// The result of a [`Modify`](super::Modify).
#[derive(Debug, Clone, PartialEq)]
pub enum ModifyOutcome {
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
    /// The function returned [`Change::Keep`](super::Change::Keep), or it removed a key that does not exist. Contains the
    /// key as it was read.
    Kept(Option<KeyValue>),
}

impl CreateOutcome {
    /// Returns the revision of the write, or `None` if the key exists.
    pub fn revision(&self) -> Option<i64> {
        match self {
            Self::Created { revision } => Some(*revision),
            Self::Exists(_) => None,
        }
    }
}

impl UpdateOutcome {
    /// Returns the revision of the write, or `None` if there was a conflict.
    pub fn revision(&self) -> Option<i64> {
        match self {
            Self::Updated { revision } => Some(*revision),
            Self::Conflict(_) => None,
        }
    }
}

impl RemoveOutcome {
    /// Returns the revision of the removal, or `None` if there was a conflict.
    pub fn revision(&self) -> Option<i64> {
        match self {
            Self::Removed { revision } => Some(*revision),
            Self::Conflict(_) => None,
        }
    }
}

impl ModifyOutcome {
    /// Returns the revision of the write or the removal, or `None` if the key was kept.
    pub fn revision(&self) -> Option<i64> {
        match self {
            Self::Written { revision } | Self::Removed { revision } => Some(*revision),
            Self::Kept(_) => None,
        }
    }
}
