//! A client for the keys under a prefix.
//!
//! [`Client::namespace`] returns a [`Client`] that adds the prefix to every key it sends and removes it from every key
//! it receives. To its users, the namespace is the whole key space: an empty key with `.prefix()` or `.from_key()` means
//! all keys of the namespace, and no range leaves it. The prefix appears in no response, event or error.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let tenant = etcd.namespace("tenants/a/")?;
//! tenant.put("config/rate", "100").await?; // writes `tenants/a/config/rate`
//! let all = tenant.get("").prefix().await?;
//! assert_eq!(all.kvs[0].key, "config/rate");
//! tenant.mutex("jobs/report").await?.lock().await?; // the lock `tenants/a/jobs/report`
//! # Ok(())
//! # }
//! ```
//!
//! The new client shares the connections, the watch streams and the life of the client it was made from. It can be
//! cloned, given to the actor [`Etcd`](crate::Etcd), and have namespaces of its own: `tenant.namespace("users/")` is the
//! namespace `tenants/a/users/`.
//!
//! # In the namespace
//! - Reads and writes of keys: [`get`](Client::get) with pages and streams, [`put`](Client::put),
//!   [`delete`](Client::delete), [`txn`](Client::txn) with its conditions and nested transactions, and all
//!   [layers](crate::layers).
//! - [Watches](crate::watch), including previous values and resyncs.
//! - [Recipes](crate::recipes): the names of locks, elections, singletons and services, and the keys of sessions.
//! - [Locks and elections run by the server](crate::server_side), and their keys.
//! - The markers of writes that are applied [exactly once](crate::layers::exactly_once). Each namespace has markers and a
//!   lease of its own, until the client is shut down. A guard fences only writes in the namespace of its lock.
//! - The keys of a lease in [`TimeToLiveResponse::keys`](crate::lease::TimeToLiveResponse::keys): those in the
//!   namespace.
//!
//! # Shared by all namespaces
//! - Revisions, and [`compact`](Client::compact), which discards the history of all keys.
//! - The ids of leases. [`revoke`](Client::revoke) deletes all keys of a lease, and [`leases`](Client::leases) lists
//!   those of the whole cluster.
//! - Administration: [`cluster`](Client::cluster), [`maintenance`](Client::maintenance), [`auth`](Client::auth),
//!   [`users`](Client::users), and the keys in the permissions of [`roles`](Client::roles).
//! - [`Client::grpc`], which sends messages as they are.
//!
//! A namespace keeps programs apart that follow it. It is no protection: that is what
//! [roles](Client::roles) are for, with a permission for the prefix.
//!
//! # Names
//! The prefix must end with a separator: `/`, `:`, `.`, `|`, `#` or a zero byte. Otherwise it would also be a prefix of
//! the keys of others: `tenants/a` is one of `tenants/ab/key`. [`Client::namespace_exactly`] accepts any prefix but the
//! empty one.

use crate::{
    client::Client,
    error::{Error, Result},
    request::{ClientHandle, IntoBytes},
};

/// The bytes that a namespace may end with.
const SEPARATORS: &[u8] = b"/:.|#\0";

impl Client {
    /// Returns a client for the keys under `prefix`, which must end with a separator, such as `tenants/a/`. See
    /// [`layers::namespace`](crate::layers::namespace).
    ///
    /// Fails with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the prefix is empty or ends with
    /// anything but `/`, `:`, `.`, `|`, `#` or a zero byte.
    pub fn namespace(&self, prefix: impl IntoBytes) -> Result<Self> {
        let prefix = prefix.into_bytes();
        check_separator(&prefix)?;
        self.namespace_exactly(prefix)
    }

    /// Like [`namespace`](Self::namespace), for a prefix that ends with any byte. The namespace `tenants/a` contains the
    /// keys of `tenants/ab` as well, under names such as `b/key`.
    ///
    /// Fails with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the prefix is empty.
    pub fn namespace_exactly(&self, prefix: impl IntoBytes) -> Result<Self> {
        let prefix = prefix.into_bytes();
        if prefix.is_empty() {
            return Err(Error::invalid(
                "the namespace is empty; give it a prefix such as `tenants/a/`, or use the client itself for all keys",
            ));
        }
        Ok(self.with_view(self.view().within(prefix)))
    }
}

/// Fails if a prefix ends without a separator. An empty one is accepted.
fn check_separator(prefix: &[u8]) -> Result<()> {
    match prefix.last() {
        Some(last) if !SEPARATORS.contains(last) => {
            let name = prefix.escape_ascii();
            Err(Error::invalid(format!(
                "the namespace `{name}` does not end with a separator, so it would also contain the keys of \
                 `{name}2`; use `{name}/`, or `namespace_exactly` if this prefix is intended"
            )))
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, Outcome};

    #[test]
    fn namespace_ends_with_separator() {
        for prefix in ["a/", "/", "app:tenant:", "app.tenant.", "a|", "a#", "a\0"] {
            assert!(check_separator(prefix.as_bytes()).is_ok(), "{prefix:?}");
        }
        for prefix in ["a", "tenants/a", "a-", "a_", "a/ ", "a/\n", "ä"] {
            let error = check_separator(prefix.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert_eq!(error.outcome(), Outcome::NotSent);
        }
    }

    #[test]
    fn refusal_says_what_to_use() {
        let error = check_separator(b"tenants/a").unwrap_err().to_string();
        for part in ["`tenants/a`", "`tenants/a/`", "`namespace_exactly`"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
