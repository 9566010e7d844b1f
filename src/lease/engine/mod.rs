//! The lease engine: one actor per lease, one keeper per client.
//!
//! [`lease_actor`] decides for one lease by its [`deadline`] and reports to the lease's owner through the
//! [`lease_cell`]. [`keeper`] owns the timer and the keepalive streams, one per connection, that all leases share.
//!
//! An idle lease has no timer and sends no messages, so that ten thousand leases stay cheap: the keeper has one timer
//! on a [`timer_wheel`] of all due times. Keeper and lease actors run on one thread and share [`kept_leases`]: a lease
//! actor writes there when to check its lease and which keepalive to send, and the keeper reads these in batches.
//!
//! The deadlines are in `kept_leases`, too. The keeper uses them to perform routine steps by itself, and wakes a
//! lease's actor for everything else: a late response, a failed stream, a passed deadline, a lost lease.

pub(crate) mod clock;
pub(crate) mod deadline;
pub(crate) mod in_flight_keepalives;
pub(crate) mod keepalive_route;
pub(crate) mod keepalive_stream;
pub(crate) mod keeper;
pub(crate) mod kept_leases;
pub(crate) mod lease_actor;
pub(crate) mod lease_cell;
pub(crate) mod lease_service;
pub(crate) mod lease_slab;
pub(crate) mod timer_wheel;
