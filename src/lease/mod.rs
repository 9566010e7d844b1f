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
//!
//! A process that restarts continues with its lease: [`Lease::detach`] returns the id, and
//! [`Client::lease_from`](crate::Client::lease_from) takes the lease over.

mod adopt;
pub(crate) mod engine;
pub(crate) mod events;
mod grant;
mod keep_alive_once;
mod lease_handle;
mod queries;
pub(crate) mod revoke;
mod subscribe_lease;

pub use adopt::{AdoptLease, lease_from};
pub use events::{LeaseEvent, LeaseEvents, LeaseLost, LeaseMessage};
pub use grant::{Grant, grant};
pub(crate) use keep_alive_once::ONCE_RESPONSE_TIMEOUT;
pub use keep_alive_once::{KeepAliveOnce, KeepAliveOnceResponse, keep_alive_once};
pub use lease_handle::Lease;
pub use queries::{Leases, LeasesResponse, TimeToLive, TimeToLiveResponse, leases, time_to_live};
pub use revoke::{Revoke, RevokeResponse, revoke};
pub use subscribe_lease::SubscribeLease;

use crate::{proto, request::macros::response_headers};

response_headers!(
    proto::LeaseGrantResponse,
    proto::LeaseRevokeResponse,
    proto::LeaseTimeToLiveResponse,
    proto::LeaseLeasesResponse,
);
