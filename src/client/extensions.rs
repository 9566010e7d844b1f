//! State that layers keep for a client: shared by its clones, created when it is first needed. Each namespace has its
//! own state, because the same key means another key there.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use super::Client;
use crate::request::key_prefix::KeyPrefix;

type Extension = Arc<dyn Any + Send + Sync>;

/// The state of each type in each namespace. The empty namespace is that of clients without one.
pub(crate) struct Extensions {
    /// `None` after the shutdown of the client.
    by_type: Mutex<Option<HashMap<(TypeId, Bytes), Extension>>>,
}

impl Extensions {
    pub(super) fn new() -> Self {
        Self {
            by_type: Mutex::new(Some(HashMap::new())),
        }
    }

    fn get<T: Any + Send + Sync>(&self, namespace: Bytes, create: impl FnOnce() -> T) -> Arc<T> {
        let key = (TypeId::of::<T>(), namespace);
        let mut by_type = self.by_type.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(by_type) = &mut *by_type else {
            return Arc::new(create());
        };
        if let Some(found) = by_type.get(&key)
            && let Ok(found) = found.clone().downcast()
        {
            return found;
        }
        let created = Arc::new(create());
        by_type.insert(key, created.clone());
        created
    }

    /// Drops all state, which may hold leases and through them the client.
    fn clear(&self) {
        let mut by_type = self.by_type.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = by_type.take();
        drop(by_type);
        drop(dropped);
    }
}

/// Clears the extensions when it is dropped.
pub(super) struct ClearOnDrop(pub(super) Arc<Extensions>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.clear();
    }
}

impl Client {
    /// Returns the state of this type for the namespace of this client, which `create` creates if it does not exist. It lives until the client is shut
    /// down, and must not hold handles that keep the client running.
    pub(crate) fn extension<T: Any + Send + Sync>(&self, create: impl FnOnce() -> T) -> Arc<T> {
        let namespace = self.view.namespace().map(KeyPrefix::as_bytes);
        let namespace = namespace.cloned().unwrap_or_default();
        self.running.extensions.get(namespace, create)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_shared_until_it_is_cleared() {
        let extensions = Extensions::new();
        let get = |namespace: &'static str, text: &str| {
            extensions.get(namespace.into(), || String::from(text))
        };
        let first = get("", "first");
        assert_eq!(*get("", "second"), "first");
        assert_eq!(*get("t/", "other"), "other");
        assert_eq!(*extensions.get(Bytes::new(), || 7), 7);
        extensions.clear();
        assert_eq!(Arc::strong_count(&first), 1);
        assert_eq!(*get("", "third"), "third");
        assert_eq!(*get("", "fourth"), "fourth");
    }
}
