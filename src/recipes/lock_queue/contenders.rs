//! Reports keys under the name of a lock or an election that belong to no contender, and names that are not valid.
//!
//! The Go client waits for every older key under `<name>/`, even if no contender put it. A client that skipped such a
//! key could own the lock together with a Go client, so the key is reported as an error.

use bytes::Bytes;

use super::QueueKeys;
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    kv::KeyValue,
};

/// Returns the prefix of all keys of a lock or an election.
pub(in crate::recipes) fn queue_prefix(name: &Bytes) -> Bytes {
    [name, &b"/"[..]].concat().into()
}

/// Fails if the prefix belongs to an empty name, or to a name of slashes only: its keys would be mixed with all keys
/// that begin with a slash.
pub(in crate::recipes) fn check_prefix(prefix: &[u8]) -> Result<()> {
    if prefix.iter().all(|byte| *byte == b'/') {
        let reason = "the name of a lock, an election, a singleton or a barrier needs a character other than `/`";
        return Err(Error::invalid(reason));
    }
    Ok(())
}

/// Returns an error for the first key that is not a contender's, and logs it.
pub(super) fn check_contenders(keys: &QueueKeys, kvs: &[KeyValue]) -> Result<()> {
    let is_other = |kv: &&KeyValue| !keys.is_contender(&kv.key, kv.lease);
    kvs.iter()
        .find(is_other)
        .map_or(Ok(()), |kv| Err(blocked(&keys.prefix, kv)))
}

/// As [`check_contenders`], for keys that are all bound to leases and were read without them.
pub(super) fn check_leased_keys(keys: &QueueKeys, kvs: &[KeyValue]) -> Result<()> {
    const ANY_LEASE: i64 = 1;
    let is_other = |kv: &&KeyValue| !keys.is_contender(&kv.key, ANY_LEASE);
    kvs.iter()
        .find(is_other)
        .map_or(Ok(()), |kv| Err(blocked(&keys.prefix, kv)))
}

fn blocked(prefix: &[u8], other: &KeyValue) -> Error {
    let key = String::from_utf8_lossy(&other.key);
    let name = String::from_utf8_lossy(prefix.strip_suffix(b"/").unwrap_or(prefix));
    tracing::warn!(%key, %name, "key blocks a lock or an election");
    let reason = format!("the key `{key}` blocks the lock or election `{name}`");
    Error::new(ErrorKind::LockBlocked, Outcome::Rejected, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::lock_queue::QueueRule;

    fn kv(key: &'static str, lease: i64) -> KeyValue {
        KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            lease,
            ..KeyValue::default()
        }
    }

    #[test]
    fn blocking_key_is_named() {
        let queue = [kv("jobs/7", 7), kv("jobs/count", 0)];
        let keys = QueueKeys {
            prefix: queue_prefix(&"jobs".into()),
            rule: QueueRule::Exclusive,
        };
        assert!(check_contenders(&keys, &queue[..1]).is_ok());
        let blocked = check_contenders(&keys, &queue).unwrap_err();
        assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
        assert!(blocked.to_string().contains("jobs/count"), "{blocked}");
    }

    #[test]
    fn names_without_characters_are_refused() {
        let check = |name: &'static str| check_prefix(&queue_prefix(&name.into())).is_ok();
        for name in ["", "/", "//"] {
            assert!(!check(name), "{name}");
        }
        for name in ["a", "/a", "a/", "/a/b/", "\0", " "] {
            assert!(check(name), "{name:?}");
        }
    }
}
