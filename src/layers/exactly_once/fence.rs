//! Conditions under which a write is allowed at all.

use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind, Outcome},
    kv::Compare,
};

/// A lock, a leadership or another ownership that must still hold when a write is applied. Implemented by
/// [`Ownership`](crate::recipes::mutex::Ownership).
pub trait Fence {
    /// Returns conditions that hold only during the ownership.
    fn fence_conditions(&self) -> Vec<Compare>;

    /// Returns the key in etcd that represents the ownership, for error messages.
    fn fence_key(&self) -> Bytes;
}

/// The fences of a write.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fences {
    conditions: Vec<Compare>,
    keys: Vec<Bytes>,
}

impl Fences {
    pub(crate) fn add(&mut self, fence: &impl Fence) {
        self.conditions.extend(fence.fence_conditions());
        self.keys.push(fence.fence_key());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    pub(crate) fn conditions(&self) -> Vec<Compare> {
        self.conditions.clone()
    }

    /// Returns the error of a write whose fences did not hold.
    pub(crate) fn lost(&self) -> Error {
        let quoted = |key: &Bytes| format!("`{}`", key.escape_ascii());
        let keys: Vec<_> = self.keys.iter().map(quoted).collect();
        let subject = match &keys[..] {
            [key] => format!("{key} is"),
            keys => format!("at least one of {} is", keys.join(", ")),
        };
        let reason = format!("nothing was written, because {subject} no longer held");
        Error::new(ErrorKind::LockLost, Outcome::Rejected, reason)
    }
}
