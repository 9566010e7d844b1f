//! Real etcd clusters behind fault proxies, and a scripted gRPC server.
//!
//! ```no_run
//! # async fn example() {
//! use testbed::{Cluster, Fault};
//!
//! let cluster = Cluster::start(3).await;
//! cluster.member(0).kill();
//! cluster.member(1).client_link().set(Fault::Freeze);
//! cluster.heal();
//! cluster.start_all().await;
//! # }
//! ```
//!
//! Clients and peers reach a member only through proxies in this process, so each [`Link`] can fail separately. The
//! proxies have their own threads, so a test may block its thread or pause its clock.

mod address_group;
mod admin;
mod binary;
mod builder;
mod chaos;
mod child_program;
mod cleanup;
mod clock;
mod cluster;
mod fast;
mod gateway;
mod grpc_proxy;
mod health;
mod history;
mod hosts_file;
mod l7_proxy;
pub mod lease_validators;
mod link;
mod member;
mod metrics;
mod network_path;
mod path_chaos;
mod peers;
mod ports;
mod process;
mod proxy;
mod runtime;
mod scripted;
mod stream_counter;
mod tcp_balancer;
mod tcp_proxy;
mod tls;
pub mod validators;

pub use address_group::AddressGroup;
pub use binary::VERSIONS;
pub use builder::{ClusterBuilder, Tokens};
pub use chaos::{Chaos, ChaosKind, chaos_duration};
pub use child_program::{ChildProgram, exit_at_end_of_stdin};
pub use clock::time_since_boot;
pub use cluster::Cluster;
pub use fast::{FastServer, WatchPlan, parse as parse_watch_plan};
pub use gateway::{decode, encode, number};
pub use grpc_proxy::GrpcProxy;
pub use history::Change;
pub use hosts_file::HostsFile;
pub use l7_proxy::{ErrorStyle, Failure, L7Action, L7Proxy, ProxiedRequest};
pub use link::{Direction, Fault, Link};
pub use member::Member;
pub use network_path::{NetworkPath, PathKind};
pub use path_chaos::{ChaosPath, FaultCounts};
pub use scripted::{
    Call, GoAway, Greeting, Receiver, Reply, ResponseHeader, STATUS, ScriptedServer, Sender,
    StatusResponse, StreamClosed, framed,
};
pub use tcp_balancer::TcpBalancer;
pub use tcp_proxy::TcpProxy;

pub use tls::{Authority, Certificate, Tls, write_shared_certificate};

pub use h2::Reason;
