//! A typed configuration in etcd that is always current: an `Arc<T>`, without a request.
//!
//! A [`LiveConfig`] is the decoded value of one key, or a value that a function builds from all keys with a prefix. Each
//! version is validated before it replaces the last one. A version that cannot be decoded, or that the validation
//! rejects, is reported and not used.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::layers::codec::Utf8;
//!
//! let rate = etcd
//!     .live_config::<u32, Utf8>("config/rate")
//!     .validate(|rate| if *rate > 0 { Ok(()) } else { Err("the rate must not be 0") })
//!     .default_value(100)
//!     .await?;
//! println!("{} requests per second", rate.get());
//! if let Some(rejected) = rate.rejected() {
//!     println!("not used: {rejected}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! From several keys:
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::{Result, layers::{cache::CacheSnapshot, codec::Utf8}};
//!
//! struct Limits {
//!     rate: u32,
//!     burst: u32,
//! }
//!
//! let limits = etcd
//!     .live_config_of_prefix("limits/", |keys: &CacheSnapshot| -> Result<Limits> {
//!         let number = |key: &str, default: u32| {
//!             keys.get(key).map_or(Ok(default), |entry| entry.decode::<u32, Utf8>())
//!         };
//!         Ok(Limits { rate: number("limits/rate", 100)?, burst: number("limits/burst", 10)? })
//!     })
//!     .default_value(Limits { rate: 100, burst: 10 })
//!     .await?;
//! println!("{} with bursts of {}", limits.get().rate, limits.get().burst);
//! # Ok(())
//! # }
//! ```
//!
//! # Changes
//! [`LiveConfig::changed`] is a stream of new values and of rejected versions, [`LiveConfig::deliver_to`] sends them to
//! an actor. As messages to the actor [`Etcd`](crate::Etcd): [`live_config`](fn@live_config) and
//! [`live_config_of_prefix`] with `deliver_to(recipient)`.
//!
//! # Guarantees
//! - The value is always one that was accepted, or the default while no key exists.
//! - It is replaced on the client's thread: also while the application blocks its own threads.
//! - During an outage the last value stays; afterwards it is the current one, also through compactions and restores of
//!   the cluster. [`LiveConfig::freshness`] returns how fresh it is. The keys are those of a
//!   [cache](crate::layers::cache).
//! - With a [file](LiveConfigBuilder::snapshot_file), a process starts without etcd, and with the last accepted version
//!   if the one in etcd is rejected.

mod config_event;
mod config_handle;
mod config_source;
mod config_task;
mod live_config_builder;

pub use config_event::{ConfigChanges, ConfigEvent, RejectedConfig};
pub use config_handle::LiveConfig;
pub use live_config_builder::{
    LiveConfigBuilder, SubscribeConfig, live_config, live_config_of_prefix,
};

pub use crate::client::subscription::Subscription;
