//! Runs an actor on one node at a time.
//!
//! Every node starts a [`Singleton`] with the same name. The nodes campaign in an election; the leader creates the
//! actor and runs it until its leadership is at risk. It stops the actor before the lease ends, and resigns only after
//! the actor has ended, so that two instances never run at once.
//!
//! # When the actor starts and stops
//! - A leader starts the actor only with enough time left on its lease: a third of the TTL and half of the
//!   [`margin`](SingletonBuilder::margin). That is more than the actor needs to stop, and less than a lease that is
//!   renewed on time always has. Otherwise it waits for the next renewal.
//! - The actor is stopped when only the margin is left, when [`Singleton::stop`] is called or the last handle is
//!   dropped, when a [health check](SingletonBuilder::healthy_while) fails, and when the client is shut down. It may
//!   refuse to stop in `stopping`, for example to finish its work, and then has the margin to end. A shutdown waits for
//!   it as long, or for the client's `shutdown_grace` if that is longer. When the time is over, the actor is dropped.
//!   After [`Singleton::stop`] it may take any time, because its lease is still renewed.
//! - When a campaign fails, for example because the user may not write the keys, it is repeated.
//!   [`Singleton::state`] shows the reason.
//!
//! # What is guaranteed
//! - A node that is cut off from etcd ends its actor before another node can lead, if clocks run at the same speed. An
//!   actor that blocks its thread for longer than the lease lasts outlives the leadership. An error is logged.
//! - Everything in the actor's context ends with the actor: handlers, `ctx.spawn`, `run_interval`, `ResponseActFuture`.
//!   A handler's `ResponseFuture`, `actix_rt::spawn` and `tokio::spawn` start separate tasks that outlive it: end them
//!   with [`Ownership::lost`], or write through [`Ownership::txn`].
//! - A paused process (a debugger, `SIGSTOP`, a suspended virtual machine) cannot end its actor in time, but does
//!   nothing either. When it continues, the actor handles no further message: the clock is read before each one. Only
//!   the step in which it was paused is completed: one message, or one poll of the futures in its context.
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
//! if singleton.is_running_here() {
//!     println!("runs on this node");
//! }
//! singleton.stop().await;
//! # Ok(())
//! # }
//! ```

mod campaign_loop;
mod run_times;
mod singleton_handle;
mod singleton_state;
mod time_limited_actor;

use std::{sync::Arc, time::Duration};

use actix::{Actor, Context};
use bytes::Bytes;
use tokio::sync::watch;

pub use singleton_handle::{Singleton, SingletonEvent};
pub use singleton_state::SingletonState;

use super::{
    election::{HealthCheck, Ownership},
    lock_queue::{check_prefix, queue_prefix},
};
use crate::{
    client::Client,
    error::{Error, Result},
    request::IntoBytes,
};
use campaign_loop::{CampaignLoop, EndSignals};
use run_times::RunTimes;
use singleton_state::LocalState;

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
            health: None,
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
    health: Option<HealthCheck>,
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

    /// Sets how long before the end of the lease the actor is stopped, which is the time it has to end; at most half of
    /// the TTL. Default: a third of the TTL.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Runs the actor on this node only while `check` returns `true`, for example while a heartbeat of the application
    /// is recent. It is called at this interval, on the arbiter of the singleton, and must not block. A check that panics
    /// counts as `false`. Default: no check.
    ///
    /// When the node is not healthy, it stops the actor and resigns, or leaves the queue, so that another node can run
    /// the actor. It campaigns again when it is healthy.
    pub fn healthy_while(
        mut self,
        interval: Duration,
        check: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        self.health = Some(HealthCheck::new(interval, check));
        self
    }

    /// Starts to campaign, and runs the actor on the current arbiter whenever this node leads.
    ///
    /// `factory` gets the ownership of the leadership, for its token and its transactions. When the actor ends by
    /// itself, or the factory panics, this node resigns and campaigns again. Fails with
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if this thread has no actix arbiter, if the
    /// margin is more than half of the TTL, or if the name is empty or consists of slashes.
    pub fn start<A, F>(self, factory: F) -> Result<Singleton<A>>
    where
        A: Actor<Context = Context<A>>,
        F: FnMut(Ownership) -> A + 'static,
    {
        if actix_rt::Arbiter::try_current().is_none() {
            return Err(Error::invalid("there is no actix arbiter on this thread"));
        }
        check_prefix(&queue_prefix(&self.name))?;
        let Some(times) = RunTimes::new(self.ttl, self.margin) else {
            let reason = "the margin is more than half of the TTL";
            return Err(Error::invalid(reason));
        };
        let (stop, stop_requested) = watch::channel(false);
        let state = watch::Sender::new(LocalState::Waiting);
        let singleton = Singleton {
            client: self.client.clone(),
            state: state.subscribe(),
            stop: Arc::new(stop),
        };
        let end = EndSignals {
            stop: stop_requested,
            client_stops: self.client.holders().stop_signal(),
        };
        let campaign_loop = CampaignLoop {
            builder: self,
            times,
            factory,
            state,
        };
        actix_rt::spawn(campaign_loop.run(end));
        Ok(singleton)
    }
}
