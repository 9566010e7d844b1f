//! Opens one HTTP/2 connection to an [`Endpoint`] and sends gRPC calls on it.
//!
//! [`addresses`](dial::addresses) looks up the addresses of an endpoint, and [`dial`](dial::dial) opens a connection to
//! one of them, over TCP or a Unix socket, with or without TLS. It returns two halves: the
//! [`Channel`](channel::Channel), which callers on any thread use, and the [`Driver`](driver::Driver), which the
//! connection's actor runs. Both use one [`SharedConnection`](shared_connection::SharedConnection), which the runtime of
//! busy callers can drive instead. Unlike a connection pool, this layer reports when the connection ends and whether a request
//! can have reached the member ([`WireLog`](wire_log::WireLog)).

pub(crate) mod address_history;
pub(crate) mod channel;
pub(crate) mod dial;
pub(crate) mod driver;
pub(crate) mod endpoint;
mod frame_scanner;
pub(crate) mod grpc;
mod movable_socket;
pub(crate) mod ping_pace;
mod pinger;
pub(crate) mod resolver;
mod shared_connection;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls_disabled.rs"]
pub(crate) mod tls;
pub(crate) mod tls_detection;
pub(crate) mod wire_log;

pub use channel::ResponseBody;
pub use endpoint::Endpoint;
pub(crate) use endpoint::{RawEndpoint, hide_credentials};
#[cfg(feature = "tls")]
pub use tls::TlsOptions;
