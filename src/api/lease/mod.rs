//! Leases: granting, keeping, asking, revoking.

mod ask;
mod grant;
mod handle;
mod once;
pub(crate) mod revoke;

pub use ask::{Leases, LeasesResponse, TimeToLive, TimeToLiveResponse, leases, time_to_live};
pub use grant::{Grant, grant};
pub use handle::Lease;
pub(crate) use once::ONCE_PATIENCE;
pub use once::{KeepAliveOnce, KeepAliveOnceResponse, keep_alive_once};
pub use revoke::{Revoke, RevokeResponse, revoke};

use std::time::Duration;

use super::answers;
use crate::{client::Client, proto};

answers!(
    proto::LeaseGrantResponse,
    proto::LeaseRevokeResponse,
    proto::LeaseTimeToLiveResponse,
    proto::LeaseLeasesResponse,
);

impl Client {
    /// Grants a lease: keys put with it are deleted when it ends. Kept alive only with
    /// [`keep_alive`](Grant::keep_alive).
    pub fn lease(&self, ttl: Duration) -> Grant<Self> {
        grant(ttl).on(self)
    }

    /// Renews a lease once, by its id.
    pub fn keep_alive_once(&self, lease: impl Into<i64>) -> KeepAliveOnce<Self> {
        keep_alive_once(lease).on(self)
    }

    /// Asks how long a lease has left and, with `.with_keys()`, which keys are bound to it.
    pub fn time_to_live(&self, lease: impl Into<i64>) -> TimeToLive<Self> {
        time_to_live(lease).on(self)
    }

    /// Ends a lease by its id; its keys are deleted.
    pub fn revoke(&self, lease: impl Into<i64>) -> Revoke<Self> {
        revoke(lease).on(self)
    }

    /// Lists the leases of the cluster.
    pub fn leases(&self) -> Leases<Self> {
        leases().on(self)
    }
}
