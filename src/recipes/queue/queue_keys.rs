//! The keys of a queue.

use std::time::SystemTime;

use bytes::Bytes;

use crate::error::{Error, Result};

/// Digits of a priority, as in the Go client.
const PRIORITY_DIGITS: usize = 5;

/// The prefixes of the keys of one queue.
#[derive(Debug, Clone)]
pub(super) struct QueueKeys {
    /// `<name>/`
    pub(super) items: Bytes,
    /// `__<name>/claims/`
    pub(super) claims: Bytes,
    /// `__<name>/takers`: the name of a lock.
    pub(super) takers: Bytes,
}

impl QueueKeys {
    /// Fails if the name is empty or consists of slashes: its keys would be mixed with all keys that begin with a slash.
    pub(super) fn new(name: &[u8]) -> Result<Self> {
        if name.iter().all(|byte| *byte == b'/') {
            let reason = "the name of a queue needs a character other than `/`";
            return Err(Error::invalid(reason));
        }
        let parent = name.iter().rposition(|byte| *byte == b'/');
        let (parent, last_part) = name.split_at(parent.map_or(0, |slash| slash + 1));
        let beside = |part: &[u8]| [parent, b"__", last_part, part].concat().into();
        Ok(Self {
            items: [name, b"/"].concat().into(),
            claims: beside(b"/claims/"),
            takers: beside(b"/takers"),
        })
    }

    /// Returns whether items of one of the two queues are also items of the other one.
    pub(super) fn overlap(&self, other: &Self) -> bool {
        self.items.starts_with(&other.items) || other.items.starts_with(&self.items)
    }

    /// Returns a new key of an item.
    pub(super) fn new_item(&self, priority: Option<u16>) -> Bytes {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanos = since_epoch.map_or(0, |time| time.as_nanos());
        let id = format!("{nanos:019}-{:016x}", fastrand::u64(..));
        match priority {
            Some(priority) => [&self.class(priority)[..], id.as_bytes()].concat().into(),
            None => [&self.items[..], id.as_bytes()].concat().into(),
        }
    }

    /// Returns the prefix of all items with this priority.
    pub(super) fn class(&self, priority: u16) -> Bytes {
        let part = format!("{priority:0PRIORITY_DIGITS$}/");
        [&self.items[..], part.as_bytes()].concat().into()
    }

    /// Returns the priority of an item, if its key has one.
    pub(super) fn priority_of(&self, item: &[u8]) -> Option<u16> {
        let (digits, rest) = self.id_of(item).split_at_checked(PRIORITY_DIGITS)?;
        let is_number = rest.starts_with(b"/") && digits.iter().all(u8::is_ascii_digit);
        let digits = std::str::from_utf8(digits).ok()?;
        is_number.then(|| digits.parse().ok()).flatten()
    }

    /// Returns the part of an item's key after the prefix.
    pub(super) fn id_of<'a>(&self, item: &'a [u8]) -> &'a [u8] {
        item.strip_prefix(&self.items[..]).unwrap_or(item)
    }

    /// Returns the claim of an item.
    pub(super) fn claim_of(&self, item: &[u8]) -> Bytes {
        [&self.claims[..], self.id_of(item)].concat().into()
    }

    /// Returns the key of an item of another queue after it has moved to this one.
    pub(super) fn moved_here(&self, from: &Self, item: &[u8]) -> Bytes {
        [&self.items[..], from.id_of(item)].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_claims_are_beside_those_of_items() {
        for (name, items, claims) in [
            ("jobs", "jobs/", "__jobs/claims/"),
            ("app/jobs", "app/jobs/", "app/__jobs/claims/"),
            ("/jobs", "/jobs/", "/__jobs/claims/"),
        ] {
            let keys = QueueKeys::new(name.as_bytes()).unwrap();
            assert_eq!((keys.items, keys.claims), (items.into(), claims.into()));
        }
        for name in ["", "/", "//"] {
            assert!(QueueKeys::new(name.as_bytes()).is_err(), "{name}");
        }
    }

    #[test]
    fn priority_is_the_part_of_five_digits() {
        let keys = QueueKeys::new(b"jobs").unwrap();
        for priority in [None, Some(0), Some(42), Some(u16::MAX)] {
            let item = keys.new_item(priority);
            assert_eq!(keys.priority_of(&item), priority, "{item:?}");
        }
        let go_item = b"jobs/00007/0000000000000003";
        assert_eq!(keys.priority_of(go_item), Some(7));
        assert_eq!(
            keys.claim_of(go_item),
            "__jobs/claims/00007/0000000000000003"
        );
        for other in ["jobs/", "jobs/+0007/1", "jobs/99999/1", "jobs/000070/1"] {
            assert_eq!(keys.priority_of(other.as_bytes()), None, "{other}");
        }
    }
}
