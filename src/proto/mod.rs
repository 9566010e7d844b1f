//! etcd's gRPC messages and clients, generated from the files in `proto/`.
//!
//! They are public for requests and fields that the rest of the crate does not offer, and for reading complete
//! responses. Names follow prost: `HashKVRequest` is [`HashKvRequest`], the field `TTL` is `ttl`. Keys, values and
//! other byte fields are [`bytes::Bytes`]: a decoded response shares the buffer it was received in.
//!
//! The messages of [`etcdserverpb`] and [`mvccpb`] are re-exported here. New versions of etcd add fields to messages,
//! so end literals with `..Default::default()`.
//!
//! The generated code is checked in: building the crate needs neither protoc nor a build script. `tests/codegen.rs`
//! checks that the code matches `proto/`.

#[cfg(test)]
mod golden;
mod key_value;
pub(crate) mod key_value_decoder;
mod redacted;
pub(crate) mod rpc;
pub(crate) mod wire_reader;

pub use etcdserverpb::*;
pub use generated::{authpb, etcdserverpb, health, mvccpb, v3electionpb, v3lockpb};
pub use mvccpb::{Event, KeyValue, event};

#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated code; the files in proto/ carry the comments"
)]
#[rustfmt::skip]
mod generated {
    /// Permissions, users and roles as etcd stores them.
    pub mod authpb;
    /// The services KV, Watch, Lease, Cluster, Maintenance and Auth.
    pub mod etcdserverpb;
    /// The standard health service of gRPC, package `grpc.health.v1`.
    #[path = "grpc.health.v1.rs"]
    pub mod health;
    /// Key-value pairs and events.
    pub mod mvccpb;
    /// The server's election service.
    pub mod v3electionpb;
    /// The server's lock service.
    pub mod v3lockpb;
}
