//! A self-healing session with keys, and the check that they exist while the session is up.

use std::{collections::BTreeMap, time::Duration};

use actix_etcd::{Client, recipes::session::Session};

const KEYS: usize = 10;

/// Keys and the leases that they are bound to.
pub type KeyLeases = BTreeMap<String, i64>;

/// Result of a check whether the keys of a session exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyCheck {
    /// All keys exist and are bound to the session's lease.
    Present,
    /// The session was not up all the time, or the keys could not be read.
    NotUp,
    /// The session was up all the time, but only these keys exist.
    Missing(KeyLeases),
}

pub struct SessionKeys {
    pub session: Session,
    prefix: String,
}

impl SessionKeys {
    /// Opens a session that gives up its lease as soon as the deadline has passed, and puts its keys.
    pub async fn open(etcd: &Client, ttl: Duration, prefix: &str) -> Self {
        let session = etcd.session(ttl).heal().give_up_after(Duration::ZERO);
        let keys = Self {
            session: session.await.unwrap(),
            prefix: prefix.to_owned(),
        };
        for key in keys.names() {
            keys.session.put(key, "v").await.unwrap();
        }
        keys
    }

    fn names(&self) -> impl Iterator<Item = String> {
        (0..KEYS).map(|n| format!("{}{n}", self.prefix))
    }

    /// Returns the lease of the session if it is certain now.
    fn certain_lease(&self) -> Option<i64> {
        let lease = self.session.lease();
        lease.filter(|_| self.session.remaining() > Duration::ZERO)
    }

    /// Returns whether these are the keys of the session, all bound to this lease.
    pub fn are_bound_to(&self, lease: i64, found: &KeyLeases) -> bool {
        self.names().all(|key| found.get(&key) == Some(&lease)) && found.len() == KEYS
    }

    /// Reads the keys with `read` and compares them with the lease that the session reported before and after.
    pub async fn check(&self, read: impl AsyncFnOnce() -> Option<KeyLeases>) -> KeyCheck {
        let before = self.certain_lease();
        let found = read().await;
        let (Some(lease), Some(found)) = (before, found) else {
            return KeyCheck::NotUp;
        };
        if self.are_bound_to(lease, &found) {
            KeyCheck::Present
        } else if self.certain_lease() == before {
            KeyCheck::Missing(found)
        } else {
            KeyCheck::NotUp
        }
    }
}
