//! The wire types: etcd's gRPC messages and clients, generated from the files under `proto/`.
//!
//! They are public for whoever needs a request or a field that the rest of the crate does not
//! offer, or wants to read an answer in full. Names follow prost: `HashKVRequest` is
//! [`HashKvRequest`], the field `TTL` is `ttl`. Keys, values and other byte fields are
//! [`bytes::Bytes`]: a decoded answer shares the buffer it arrived in.
//!
//! The messages of [`etcdserverpb`] and [`mvccpb`] can be named from here as well; their names do
//! not overlap. A message gains fields as etcd does, so end literals in `..Default::default()`.
//!
//! The code is checked in: building the crate takes no protoc and no build script.
//! `tests/codegen.rs` keeps it in step with `proto/`.

#[cfg(test)]
mod golden;
mod key_value;
mod redacted;
pub(crate) mod rpc;

pub use etcdserverpb::*;
pub use generated::{authpb, etcdserverpb, health, mvccpb, v3electionpb, v3lockpb};
pub use mvccpb::{Event, KeyValue, event};

#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "the shape is the generator's, and proto/ comments what needs a comment"
)]
#[rustfmt::skip]
mod generated {
    /// Permissions, and users and roles as etcd stores them.
    pub mod authpb;
    /// etcd's own services: KV, Watch, Lease, Cluster, Maintenance and Auth.
    pub mod etcdserverpb;
    /// gRPC's own health check, package `grpc.health.v1`.
    #[path = "grpc.health.v1.rs"]
    pub mod health;
    /// Keys with their history, and changes to them.
    pub mod mvccpb;
    /// Elections held by the server.
    pub mod v3electionpb;
    /// Locks kept by the server.
    pub mod v3lockpb;
}
