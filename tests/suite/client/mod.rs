//! The client handle: connecting, endpoints, shutdown, logs.

mod connect;
mod endpoints;
mod logs;
mod raw_grpc;
mod shutdown;
mod supervision;
