//! How a client views the cluster: plainly, within a namespace, or in order.
//!
//! All requests of a view go through the same connections. [`layers`](crate::layers) has the constructors.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    key_prefix::{KeyPrefix, KeyedRequest, KeyedResponse},
    read_order::ReadOrder,
};
use crate::call::WireResponse;

/// The view of a client. Plain clients have none: they pay one branch per request.
#[derive(Clone, Default)]
pub struct ClientView(Option<Arc<ViewParts>>);

#[derive(Clone, Default)]
struct ViewParts {
    namespace: Option<KeyPrefix>,
    order: Option<Arc<ReadOrder>>,
}

impl ClientView {
    /// Returns the view of a namespace inside of this view.
    pub(crate) fn within(&self, namespace: Bytes) -> Self {
        let mut parts = self.parts();
        parts.namespace = Some(match parts.namespace {
            Some(outer) => outer.nested(&namespace),
            None => KeyPrefix::new(namespace),
        });
        Self(Some(Arc::new(parts)))
    }

    /// Returns this view with an order of reads, which has not seen any revision.
    pub(crate) fn ordered(&self) -> Self {
        let mut parts = self.parts();
        parts.order = Some(Arc::default());
        Self(Some(Arc::new(parts)))
    }

    fn parts(&self) -> ViewParts {
        self.0.as_deref().cloned().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> Option<&KeyPrefix> {
        self.0.as_ref()?.namespace.as_ref()
    }

    pub(crate) fn order(&self) -> Option<&ReadOrder> {
        self.0.as_ref()?.order.as_deref()
    }

    /// Translates the keys of a request into the key space of the cluster.
    pub(crate) fn add_prefix(&self, request: &mut impl KeyedRequest) {
        if let Some(namespace) = self.namespace() {
            request.add_prefix(namespace);
        }
    }

    /// Translates the keys of a response into the namespace.
    pub(crate) fn remove_prefix(&self, response: &mut impl KeyedResponse) {
        if let Some(namespace) = self.namespace() {
            response.remove_prefix(namespace);
        }
    }

    /// Translates the keys of a response into the namespace, and records its revision as seen.
    pub(crate) fn accept(&self, response: &mut (impl KeyedResponse + WireResponse)) {
        if let (Some(order), Some(header)) = (self.order(), response.header()) {
            order.responded(header.cluster_id, header.revision);
        }
        self.remove_prefix(response);
    }
}
