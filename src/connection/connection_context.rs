//! Settings and state shared by all connections of a client.

use std::sync::Arc;

use tokio::time::Instant;

use super::token::TokenCell;
use super::{ClusterId, EndpointId, OtherMembers};
use crate::transport::dial::DialOptions;

/// Settings and state shared by all connections of a client.
pub(crate) struct ConnectionContext {
    pub(crate) dial: DialOptions,
    pub(crate) token: Arc<TokenCell>,
    pub(crate) cluster: Arc<ClusterId>,
    /// The other members, with which a probed member is compared.
    pub(crate) members: Arc<dyn ClusterView>,
    /// Whether every member is probed regularly, so that the leader is always known.
    pub(crate) follow_leader: bool,
}

/// Read access to the members behind all connections of a client.
pub(crate) trait ClusterView: Send + Sync {
    /// Returns the last known status of every connected member except one.
    fn other_members(&self, except: EndpointId) -> OtherMembers;

    /// Returns whether any connected member except one has sent data after `since`.
    fn others_responded_since(&self, except: EndpointId, since: Instant) -> bool;
}
