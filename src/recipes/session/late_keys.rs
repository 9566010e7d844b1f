//! Keys that a request without a response may still create.
//!
//! Such a request can wait in the socket of a frozen member for as long as the session lives. Its key is therefore
//! followed until the lease ends: by a watch, or, for a session with many such keys, by reading the keys of the lease.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::LocalMutex;

/// Maximum number of keys that are followed by a watch of their own.
const MAX_WATCHED_KEYS: usize = 64;

/// A key to follow, and the local mutex that is locked while a task of the session uses it.
pub(in crate::recipes) type LateKey = (Bytes, LocalMutex);

/// The action by which the caller follows a key.
pub(in crate::recipes) enum FollowLateKey {
    /// Nothing: the key is followed already.
    Followed,
    Watch,
    /// Read the keys of the lease at intervals, and follow these keys among them.
    Poll(UnboundedReceiver<LateKey>),
}

/// The keys that are followed, of the current lease.
#[derive(Default)]
pub(in crate::recipes) struct LateKeys(Mutex<FollowedKeys>);

#[derive(Default)]
struct FollowedKeys {
    lease: i64,
    keys: HashSet<Bytes>,
    polled: Option<UnboundedSender<LateKey>>,
}

impl LateKeys {
    /// Adds a key of the current lease.
    pub(super) fn add(&self, lease: i64, key: &Bytes, local_mutex: &LocalMutex) -> FollowLateKey {
        let mut followed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if followed.lease != lease {
            *followed = FollowedKeys {
                lease,
                ..FollowedKeys::default()
            };
        }
        if !followed.keys.insert(key.clone()) {
            return FollowLateKey::Followed;
        }
        if followed.keys.len() <= MAX_WATCHED_KEYS {
            return FollowLateKey::Watch;
        }
        let late_key = (key.clone(), local_mutex.clone());
        // Sending fails only if the lease has ended.
        if let Some(polled) = &followed.polled {
            let _ = polled.send(late_key);
            return FollowLateKey::Followed;
        }
        let (polled, receiver) = mpsc::unbounded_channel();
        let _ = polled.send(late_key);
        followed.polled = Some(polled);
        FollowLateKey::Poll(receiver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Bytes {
        format!("l/{number}").into()
    }

    #[test]
    fn key_is_followed_once_per_lease() {
        let (keys, mutex) = (LateKeys::default(), LocalMutex::default());
        assert!(matches!(keys.add(7, &key(1), &mutex), FollowLateKey::Watch));
        assert!(matches!(
            keys.add(7, &key(1), &mutex),
            FollowLateKey::Followed
        ));
        assert!(matches!(keys.add(7, &key(2), &mutex), FollowLateKey::Watch));
        assert!(matches!(keys.add(8, &key(1), &mutex), FollowLateKey::Watch));
    }

    #[test]
    fn many_keys_share_one_poll() {
        let (keys, mutex) = (LateKeys::default(), LocalMutex::default());
        for number in 0..MAX_WATCHED_KEYS {
            assert!(matches!(
                keys.add(7, &key(number), &mutex),
                FollowLateKey::Watch
            ));
        }
        let polled = keys.add(7, &key(MAX_WATCHED_KEYS), &mutex);
        let FollowLateKey::Poll(mut polled) = polled else {
            panic!("one more key is not polled");
        };
        let next = keys.add(7, &key(MAX_WATCHED_KEYS + 1), &mutex);
        assert!(matches!(next, FollowLateKey::Followed));
        for number in [MAX_WATCHED_KEYS, MAX_WATCHED_KEYS + 1] {
            assert_eq!(polled.try_recv().unwrap().0, key(number));
        }
    }
}
