//! The client handle: connecting, endpoints, shutdown, logs.

mod api_version;
mod connect;
mod endpoints;
mod logs;
mod raw_grpc;
mod runtime;
pub mod shutdown;
mod supervision;
