//! An actor-based, resilient etcd v3 client runtime.
//!
//! ```no_run
//! # async fn example() -> actix_etcd::Result<()> {
//! use actix_etcd::{kv::{get, put, version}, Client};
//!
//! let etcd = Client::builder(["http://127.0.0.1:2379"]).connect().await?;
//! etcd.put("config/rate", "100").await?;
//! let done = etcd
//!     .txn()
//!     .when([version("config/owner").eq(0)])
//!     .then([put("config/owner", "me")])
//!     .otherwise([get("config/owner")])
//!     .await?;
//! etcd.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Promises
//! 1. **A write is applied at most once.** An error says which of three it was ([`Outcome`]): *not sent*, *rejected*
//!    (never applied), or *unknown*. Only the first two are ever tried again for the caller.
//! 2. **A watch never loses, repeats, reorders or splits a revision**, over any number of reconnects, and ends with
//!    exactly one typed reason ([`WatchEnd`]).
//! 3. **A lease lives as long as the cluster lets it**: one frozen, dead or partitioned member never costs it. When it
//!    is gone, the reason is told ([`lease::LeaseLost`]).
//! 4. **No call hangs.** Every call has a deadline (5 s by default); a dead, frozen or leaderless member is noticed
//!    within about a second of traffic, and left.
//! 5. **No panic, no leak, no unbounded buffer.** A crash of any actor is contained and healed; what is dropped ends on
//!    the server, too.
//!
//! # The parts
//! A request reads top-down through the tree: [`Client`] → `call` → `balancer` → `connection` → `transport`. It runs on
//! the caller's own task, without a mailbox on the way; the actors decide beside it, and their decision travels as an
//! immutable snapshot.
//!
//! | actor | is told | tells |
//! |---|---|---|
//! | `ConnectionActor`, one an endpoint | connect, suspect, drain | every change of its state |
//! | `BalancerActor` | changes of state, new endpoints | who is ready, as a snapshot |
//! | `RetryActor` | schedule a retry, a member is ready | a ticket when it is time |
//! | `AuthActor` | a token was rejected | the new token, once for all |
//! | `HubActor` of watches | start, attach, detach, a stream ended | which stream a watch is to open on |
//! | `StreamActor`, one a shared watch stream | open, leave, ask, received, broken | what each watch is to have heard |
//! | `WatchActor`, one a watch | heard, drained, request progress, cancel | events, into a bounded queue or to an actor |
//! | `LeaseActor`, one a lease | due, acknowledged, broken | renewed, at risk, lost |
//! | [`Etcd`], for your actors | any request | its answer; failures nobody waits for |
//!
//! All but [`Etcd`] are supervised: a panic costs the message that caused it, neither state nor mailbox. `Etcd` is
//! started by you as any actor of yours, and keeps nothing a panic could cost: every call is a task of its own.
//!
//! # Where it differs from the plan
//! - A unary call is encoded straight into h2, without tonic's client in between, which halves what it costs; tonic's
//!   generated clients run over the same connections through [`Client::grpc`].
//! - A watch does not talk to its connection: the hub places it, and the actor of a stream pairs answers with watches.
//! - "Not sent" is said of a broken connection only once its socket is closed: what h2 has encoded can still be flushed
//!   until then. Requests beyond a member's stream limit wait before h2, where it is known that they were not sent.
//! - Endpoints that lead to another cluster all of a sudden are refused unless the client was told to follow them
//!   ([`ClientBuilder::follow_cluster_change`]): revisions and leases of one cluster mean nothing in another. Who follows
//!   recovers with one login.
//! - A member that stands still is compared with when others were *first* seen ahead of it. A member that was away gets
//!   requests again when it has what others have *since* it is back: one that wakes believes in its leader for a while.
//! - The [`recipes`] ask etcd through the public API alone, but live on the client's thread, as its actors do: a lock is
//!   given back and a key put again although the application blocks its own.

pub mod actor;
pub mod auth;
pub mod balancer;
mod call;
pub mod client;
pub mod cluster;
mod connection;
pub mod error;
pub mod health;
pub mod kv;
pub mod lease;
pub mod maintenance;
pub mod proto;
pub mod recipes;
pub mod request;
pub mod retry;
mod runtime;
pub mod server_side;
#[cfg(feature = "test-faults")]
#[doc(hidden)]
pub mod test_faults;
mod transport;
pub mod watch;

pub use actor::Etcd;
pub use auth::Credentials;
pub use client::{Client, ClientBuilder};
pub use error::{Error, ErrorKind, Outcome, Result};
pub use lease::Lease;
pub use request::IntoBytes;
pub use transport::Endpoint;
#[cfg(feature = "tls")]
pub use transport::TlsOptions;
pub use watch::{Watch, WatchEvent};

/// What the README shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
