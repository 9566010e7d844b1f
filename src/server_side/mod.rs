//! etcd's own lock and election services, which run on the server.
//!
//! [`recipes`](crate::recipes) has locks and elections that survive failing members. Use these services only to share
//! locks and elections with a program that uses them.

pub mod election;
pub mod lock;
