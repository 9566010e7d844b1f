//! An etcd v3 client built from supervised actors, for services that depend on etcd: configuration, service discovery,
//! locks, leader election.
//!
//! # Quick start
//! ```no_run
//! # async fn example() -> actix_etcd::Result<()> {
//! use actix_etcd::Client;
//!
//! let etcd = Client::connect(["http://10.0.0.1:2379", "http://10.0.0.2:2379"]).await?;
//! etcd.put("config/rate", "100").await?;
//! let rate = etcd.get("config/rate").await?;
//! println!("{:?} at revision {}", rate.value(), rate.header.revision);
//! etcd.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! **[Transactions](kv)** check conditions and apply operations atomically:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::kv::{Compare, get, put};
//!
//! let txn = etcd
//!     .txn()
//!     .when(Compare::version("config/owner").eq(0))
//!     .then(put("config/owner", "me"))
//!     .otherwise(get("config/owner"))
//!     .await?;
//! println!("created: {}", txn.succeeded);
//! # Ok(())
//! # }
//! ```
//!
//! **[Exactly-once writes](layers::exactly_once)** are applied once or surely not, also if a response is lost, and
//! [conditional writes](layers::conditional_write) return what happened:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::layers::conditional_write::CreateOutcome;
//!
//! etcd.put("jobs/7", "done").exactly_once().await?;
//! match etcd.create("config/owner", "me").await? {
//!     CreateOutcome::Created { revision } => println!("created at revision {revision}"),
//!     CreateOutcome::Exists(kv) => println!("the owner is {:?}", kv.value_str()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **[Watches](watch)** deliver every change once, in order, over any number of reconnects:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::WatchEvent;
//!
//! let mut watch = etcd.watch("config/").prefix().await?;
//! while let Some(event) = watch.next().await {
//!     if let WatchEvent::Events(events) = event {
//!         println!("revision {}: {} changes", events.revision(), events.len());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//! [`hedged`](watch::WatchRequest::hedged) runs a watch on two members at once, so that a failed member delays no event.
//! [`Watch::freshness`] returns up to which revision a watch is complete, and as of when.
//!
//! **[Leases](lease)** are kept alive until their handle is dropped:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//!
//! let lease = etcd.lease(Duration::from_secs(10)).keep_alive().await?;
//! etcd.put("services/me", "http://me:80").lease(&lease).await?;
//! # Ok(())
//! # }
//! ```
//! [`Client::lease_from`] adopts a lease by its id, for example after a restart of the process.
//!
//! **[Recipes](recipes)** are locks, semaphores, barriers, elections, singletons and service discovery:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client) -> actix_etcd::Result<()> {
//! let mutex = etcd.mutex("jobs/report").await?;
//! let guard = mutex.lock().await?;
//! println!("fencing token {}", guard.token());
//! guard.unlock().await?;
//! # Ok(())
//! # }
//! ```
//! [`Client::mutex`] and [`Client::election`] have a session of their own, which gets a new lease after an outage.
//! `session`, `watch`, `register` and `discover` have the option `.wait()`: no deadline until the cluster is reachable.
//! [`Client::shutdown`] first stops singletons and work under locks, then releases locks and revokes leases.
//!
//! **[Bulk](layers::bulk)** writes any number of keys, many per transaction, and reports its progress:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client) -> actix_etcd::Result<()> {
//! let mut bulk = etcd.bulk().start();
//! for number in 0..100_000 {
//!     bulk.put(format!("users/{number}"), "value").await?;
//! }
//! println!("{} keys written", bulk.finish().await?.written);
//! # Ok(())
//! # }
//! ```
//! [`Client::get_many`] reads any number of keys at one revision, and [`Get::stream`](kv::Get::stream) a range of any
//! size in constant memory.
//!
//! **[Cache](layers::cache)** mirrors a prefix in memory, for reads without a request:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client) -> actix_etcd::Result<()> {
//! let users = etcd.cache("users/").await?;
//! println!("{} users at revision {}", users.len(), users.revision());
//! let alice = users.get("users/alice");
//! let as_recent_as_every_write = users.get_consistent("users/alice").await?;
//! # Ok(())
//! # }
//! ```
//! [`Client::live_config`] keeps a typed and validated value as an `Arc` that is always current. Both can start without
//! etcd from a file.
//!
//! **[Typed values](layers::typed)** are types of the application instead of bytes, in JSON, protobuf, text or an encoding
//! of your own:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::layers::{codec::Json, typed::TypedUpdateOutcome};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct User {
//!     name: String,
//! }
//!
//! let users = etcd.typed::<User, Json>("users/");
//! users.create("7", &User { name: "Ada".into() }).await?;
//! if let Some(mut user) = users.get("7").await? {
//!     user.value.name.push_str(" Lovelace");
//!     if let TypedUpdateOutcome::Conflict(current) = users.update(&user).await? {
//!         println!("changed by somebody else: {:?}", current.is_some());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//! A value that does not decode is an item of [lists and watches](layers::typed#lists-and-watches), never their end.
//!
//! **[Mirrors](layers::mirror)** copy a prefix to another cluster or prefix, and keep the copy up to date: every revision
//! once, in order, and whole, also after a crash:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client, backup: actix_etcd::Client) -> actix_etcd::Result<()> {
//! let mirror = etcd.mirror("app/").to(&backup, "app/").start().await?;
//! println!("{:?} behind", mirror.lag());
//! # Ok(())
//! # }
//! ```
//!
//! **[Namespaces](layers::namespace)** are clients for the keys under a prefix:
//! ```no_run
//! # async fn example(etcd: actix_etcd::Client) -> actix_etcd::Result<()> {
//! let tenant = etcd.namespace("tenants/a/")?;
//! tenant.put("config/rate", "100").await?; // writes `tenants/a/config/rate`
//! # Ok(())
//! # }
//! ```
//! [`Client::ordered`] returns a client whose [reads](layers::ordered), serializable ones included, never go back.
//!
//! **[Actors](actor)** send requests as messages to the actor [`Etcd`]:
//! ```no_run
//! # async fn example(client: actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix::Actor;
//! use actix_etcd::{Etcd, kv::put};
//!
//! let etcd = Etcd::new(client).start();
//! etcd.send(put("config/rate", "100")).await??;
//! # Ok(())
//! # }
//! ```
//!
//! **More modules**
//! - Requests: [`request`] (bound and unbound requests, keys and values), [`error`].
//! - Administration: [`cluster`] (members), [`maintenance`] (status, alarms, snapshots), [`auth`] (users and roles),
//!   [`health`], [`server_side`] (locks and elections run by the server).
//! - Policies: [`balancer`] (the member that serves a request), [`retry`] (the requests that are retried).
//! - Deployment: [`behind_proxies`] (load balancers, proxies, host names with several addresses).
//! - Raw access: tonic's generated clients in [`proto`], over [`Client::grpc`].
//!
//! # Guarantees
//! 1. **A write is applied at most once.** The [`Outcome`] of its error is *not sent*, *rejected* (not applied) or
//!    *unknown*. After *unknown*, the client retries only requests that are safe to repeat, such as a lease grant;
//!    never a put, a delete or a transaction that writes. The exception is a [bulk](layers::bulk), which repeats them
//!    unless you choose another [`OnUnknown`](layers::bulk::OnUnknown). [`layers::exactly_once`] resolves unknown outcomes.
//! 2. **A watch never loses, repeats, reorders or splits a revision**, over any number of reconnects, reports up to which
//!    revision it is complete ([`watch::Freshness`]), and ends with exactly one reason ([`watch::WatchEnd`]).
//! 3. **A lease lives as long as the cluster keeps it**: a frozen, dead or partitioned member does not end it. If it is
//!    lost, the client reports why ([`lease::LeaseLost`]).
//! 4. **No call hangs.** Every call has a deadline (5 s by default). A dead, frozen or leaderless member is avoided
//!    within about a second, by idle streams within 1.5 s ([`client::Liveness`]).
//! 5. **No panic, no leak, no unbounded buffer.** An actor that panics restarts with its state and its mailbox. A
//!    request, watch or stream that the application drops is also cancelled on the server.
//!
//! # Requirements
//! A tokio runtime with time enabled: `#[tokio::main]`, `#[actix_rt::main]`, or `Builder::enable_all`. By default the
//! actors of a client run on a thread of their own; [`ClientBuilder::on_current_arbiter`] runs them on the caller's
//! arbiter. A runtime that makes many calls also reads and writes the sockets of the client, until it is blocked, is idle
//! or has ended ([`ClientBuilder::sockets_follow_callers`]). Servers: etcd 3.4 to 3.7. Platforms: Unix.
//!
//! # Feature flags
//! | feature | default | effect |
//! |---|---|---|
//! | `tls` | yes | `https://` and `unixs://` endpoints with rustls; [`TlsOptions`] |
//! | `serde` | no | values of any type with serde's traits, as JSON: `layers::codec::Json` |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(unix))]
compile_error!(
    "actix-etcd supports Unix platforms only: it uses Unix sockets and file permissions"
);

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
pub mod layers;
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
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use transport::TlsOptions;
pub use watch::{Watch, WatchEvent};

#[doc = include_str!("behind_proxies.md")]
pub mod behind_proxies {}

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
