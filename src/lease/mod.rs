//! Leases: keys put with a lease are deleted when it ends. A kept lease is renewed until its handle is dropped, and a
//! lost lease reports its reason.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//!
//! let lease = etcd.lease(Duration::from_secs(5)).keep_alive().revoke_on_drop().await?;
//! etcd.put("service/a", "10.0.0.1").lease(&lease).await?;
//! let reason = lease.lost().await;
//! println!("registration lost: {reason:?}");
//! # Ok(())
//! # }
//! ```

pub(crate) mod engine;
pub(crate) mod events;
mod grant;
mod keep_alive_once;
mod lease_handle;
mod queries;
pub(crate) mod revoke;

pub use events::{LeaseEvent, LeaseEvents, LeaseLost, LeaseMessage};
pub use grant::{Grant, grant};
pub(crate) use keep_alive_once::ONCE_RESPONSE_TIMEOUT;
pub use keep_alive_once::{KeepAliveOnce, KeepAliveOnceResponse, keep_alive_once};
pub use lease_handle::Lease;
pub use queries::{Leases, LeasesResponse, TimeToLive, TimeToLiveResponse, leases, time_to_live};
pub use revoke::{Revoke, RevokeResponse, revoke};

use std::time::Duration;

use crate::{client::Client, proto, request::answers};

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
