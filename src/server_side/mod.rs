//! etcd's own lock and election services, which run on the server.
//!
//! [`recipes`](crate::recipes) has locks and elections that survive failing members; use these RPCs only where another
//! program needs them.

pub mod election;
pub mod lock;
