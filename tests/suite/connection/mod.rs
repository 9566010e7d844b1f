//! Connections: balancing, replacement, liveness, name lookup, TLS.

mod balancing;
mod dns;
mod liveness;
mod replacement;
#[cfg(feature = "tls")]
mod tls;
