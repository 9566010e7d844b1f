//! Connections: balancing, replacement, liveness, name lookup, TLS.

mod balancing;
mod dns;
mod liveness;
mod replacement;
mod suspicion;
#[cfg(feature = "tls")]
mod tls;
