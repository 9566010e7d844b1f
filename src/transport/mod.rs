//! From an [`Endpoint`] to one HTTP/2 connection that speaks gRPC.
//!
//! `dial` makes a connection (TCP or Unix socket, encrypted or not; names are looked up at every dial) and gives two halves: the
//! [`Channel`](channel::Channel), which callers on any thread use, and the [`Driver`](dial::Driver), which the
//! connection's actor runs. Unlike a pool, this connection hides nothing: its end is seen, and so is whether a
//! request can have reached the member ([`WireLog`](wire::WireLog)).

pub(crate) mod channel;
pub(crate) mod dial;
pub(crate) mod endpoint;
pub(crate) mod grpc;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls_absent.rs"]
pub(crate) mod tls;
pub(crate) mod wire;

pub use endpoint::Endpoint;
pub(crate) use endpoint::{Written, shown};
#[cfg(feature = "tls")]
pub use tls::TlsOptions;
