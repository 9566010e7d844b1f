//! The client handle: connecting, endpoints, shutdown, logs.

mod api_version;
mod connect;
mod endpoint_sync;
mod endpoints;
mod logs;
mod mixed_clusters;
mod raw_grpc;
mod runtime;
pub mod shutdown;
mod supervision;
