//! Connections: balancing, replacement, liveness, name lookup, TLS.

mod addresses;
mod balancing;
mod caller_driver;
mod dns;
mod http2;
mod liveness;
mod load_balancer;
mod replacement;
mod suspicion;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
mod tls_addresses;
