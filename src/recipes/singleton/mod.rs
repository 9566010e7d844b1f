//! Runs an actor on one node at a time.
//!
//! Every node starts a [`Singleton`] with the same name. The nodes campaign in an election; the leader creates the
//! actor and runs it until its leadership is at risk. It stops the actor before the lease ends, and resigns only after
//! the actor has ended, so that two instances never run at once.
//!
//! # What is guaranteed
//! - A node that is cut off from etcd ends its actor before another node can lead, if clocks run at the same speed and
//!   the actor ends when it is stopped. An actor that refuses to stop in `stopping`, or blocks its thread for longer
//!   than the lease lasts, outlives the leadership. An error is logged.
//! - Everything in the actor's context ends with the actor: handlers, `ctx.spawn`, `run_interval`, `ResponseActFuture`.
//!   A handler's `ResponseFuture`, `actix_rt::spawn` and `tokio::spawn` start separate tasks that outlive it: end them
//!   with [`Ownership::lost`], or write through [`Ownership::txn`].
//! - A paused process (a debugger, `SIGSTOP`, a suspended virtual machine) cannot end its actor in time, but does
//!   nothing either. When it continues, the actor stops before it handles queued messages and timers. Only the work in
//!   which it was paused is completed, usually one message. The clock of a suspended machine may not count the pause.
//! - For work that must never happen twice, rely on the fencing token: [`Ownership::txn`] writes only while this node
//!   leads, and other stores can reject writes that carry an older [`Ownership::token`].
//!
//! ```no_run
//! # use actix::{Actor, Context};
//! use std::time::Duration;
//! use actix_etcd::recipes::election::Ownership;
//!
//! struct Scheduler { leadership: Ownership }
//!
//! impl Actor for Scheduler {
//!     type Context = Context<Self>;
//! }
//!
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let singleton = etcd
//!     .singleton("scheduler")
//!     .ttl(Duration::from_secs(10))
//!     .start(|leadership| Scheduler { leadership })?;
//! if let Some(scheduler) = singleton.addr() {
//!     println!("runs on this node: {scheduler:?}");
//! }
//! singleton.stop().await;
//! # Ok(())
//! # }
//! ```

mod campaign_loop;
mod singleton_handle;
mod time_limited_actor;

use std::time::Duration;

use actix::{Actor, Context};
use bytes::Bytes;
use tokio::sync::{oneshot, watch};

pub use singleton_handle::{Singleton, SingletonEvent};

use super::election::Ownership;
use crate::{
    client::Client,
    error::{Error, Result},
    request::IntoBytes,
};
use campaign_loop::CampaignLoop;
use singleton_handle::ActorLocation;

const DEFAULT_TTL: Duration = Duration::from_secs(10);

impl Client {
    /// Configures an actor that runs on one of the nodes that start it under this name.
    pub fn singleton(&self, name: impl IntoBytes) -> SingletonBuilder {
        SingletonBuilder {
            client: self.clone(),
            name: name.into_bytes(),
            value: Bytes::new(),
            ttl: DEFAULT_TTL,
            margin: None,
        }
    }
}

/// Starts a [`Singleton`]. Made by [`Client::singleton`].
#[derive(Debug, Clone)]
#[must_use = "call `start` to run the actor"]
pub struct SingletonBuilder {
    client: Client,
    name: Bytes,
    value: Bytes,
    ttl: Duration,
    margin: Option<Duration>,
}

impl SingletonBuilder {
    /// Sets the TTL of the lease: how long after a crash of its node the actor can start on another one. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the value that observers of the election see while this node leads. Default: empty.
    pub fn value(mut self, value: impl IntoBytes) -> Self {
        self.value = value.into_bytes();
        self
    }

    /// Sets how long before the end of the lease the actor is stopped; at most half of the TTL. Default: a third of the
    /// TTL.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Starts to campaign, and runs the actor on the current arbiter whenever this node leads.
    ///
    /// `factory` gets the ownership of the leadership, for its token and its transactions. When the actor ends by
    /// itself, or the factory panics, this node resigns and campaigns again. Fails with
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if this thread has no actix arbiter, or if the
    /// margin is more than half of the TTL.
    pub fn start<A, F>(self, factory: F) -> Result<Singleton<A>>
    where
        A: Actor<Context = Context<A>>,
        F: FnMut(Ownership) -> A + 'static,
    {
        if actix_rt::Arbiter::try_current().is_none() {
            return Err(Error::invalid("there is no actix arbiter on this thread"));
        }
        let margin = self.margin.unwrap_or(self.ttl / 3);
        if margin > self.ttl / 2 {
            let reason = "the margin is more than half of the TTL";
            return Err(Error::invalid(reason));
        }
        let (stop, stopped) = watch::channel(());
        let location = watch::Sender::new(ActorLocation::Elsewhere);
        let (done, finished) = oneshot::channel();
        let singleton = Singleton {
            client: self.client.clone(),
            location: location.subscribe(),
            stop,
            finished,
        };
        let campaign_loop = CampaignLoop {
            builder: self,
            margin,
            factory,
            location,
        };
        actix_rt::spawn(async move {
            campaign_loop.run(stopped).await;
            let _ = done.send(());
        });
        Ok(singleton)
    }
}
