//! Service registration and discovery: instances of a service register themselves, and clients see a live list of them.
//!
//! Keys and values have the layout of the Go client's `naming/endpoints` package: Go programs and gRPC's etcd resolver
//! find instances that are registered here, and this crate finds theirs.
//!
//! # Registration
//! A registered instance is listed for as long as its process lives. Its key is bound to a session that heals: after
//! the loss of a lease in an outage, the instance is listed again. A process that dies is listed until its TTL ends; a
//! process that unregisters is removed at once. If another process registers under the same key, the key belongs to
//! that process; the former registration ends with [`RegistrationEvent::Taken`] and never overwrites the key.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use std::time::Duration;
//!
//! let registration = etcd
//!     .register("services/web", "10.0.0.1:80")
//!     .metadata("zone a")
//!     .ttl(Duration::from_secs(5))
//!     .await?;
//! // … serve requests …
//! registration.unregister().await?;
//! # Ok(())
//! # }
//! ```
//!
//! As a message to the actor [`Etcd`](crate::Etcd): [`register`](fn@register)`("services/web", "10.0.0.1:80")`. Sent
//! with `do_send`, the instance stays registered until the client is shut down or the arbiter of that actor ends.
//!
//! # Discovery
//! A [`Discovery`] is the list of a service's instances and a stream of its changes. During an outage it keeps the last
//! list; afterwards it equals a fresh read, even if the history in between was compacted. Keys whose value is not an
//! instance are skipped, with a warning in the log.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! use actix_etcd::recipes::discovery::DiscoveryEvent;
//!
//! let mut web = etcd.discover("services/web").await?;
//! println!("{} instances", web.instances().len());
//! while let Some(event) = web.next().await {
//!     match event {
//!         DiscoveryEvent::Changed(change) => {
//!             for instance in &change.joined {
//!                 println!("{} joined", instance.addr);
//!             }
//!         }
//!         DiscoveryEvent::Ended(error) => println!("ended: {error}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! To an actor: `etcd.discover("services/web").deliver_to(recipient)`, or as a message to the actor
//! [`Etcd`](crate::Etcd): [`discover`](fn@discover)`("services/web").deliver_to(recipient)`.

mod discover;
mod instance;
mod instance_key;
mod instance_list;
mod live_instances;
mod register;
mod registration;
mod registration_task;

pub use discover::{Discover, SubscribeInstances, discover};
pub use instance::Instance;
pub use instance_list::{Instances, InstancesChange};
pub use live_instances::{Discovery, DiscoveryEvent};
pub use register::{Register, register};
pub use registration::{Registration, RegistrationEvent};

pub use crate::client::Subscription;
