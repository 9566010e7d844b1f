//! Runs an actor on exactly one node.
//!
//! Every node starts a [`Singleton`] with the same name. They campaign; the one that leads makes the actor and runs it
//! until its leadership is at risk. Then the actor is stopped while the lease still has some time, and only after its
//! end the leadership is given up: two alive at once is what this is here to prevent.
//!
//! # What holds when
//! - A node that is cut off ends its actor before the server can let another node lead, as long as clocks run at the
//!   same speed and the actor ends when it is stopped. One that refuses in `stopping`, or blocks its thread for longer
//!   than the lease has, outlives it, and an error is logged.
//! - What ends with the actor is what runs in its context: handlers, `ctx.spawn`, `run_interval`, `ResponseActFuture`.
//!   A handler's `ResponseFuture`, `actix_rt::spawn` and `tokio::spawn` are tasks of their own, and outlive it: let
//!   them end with [`Ownership::lost`], or write through [`Ownership::txn`].
//! - A process that is paused (a debugger, `SIGSTOP`, a virtual machine that stands still) cannot end anything in
//!   time, but neither does it do anything. When it goes on, its actor stops before it looks at its mail and its timers
//!   again, however many have piled up. What is left is what it was paused in: one pass through its mail, as a rule one
//!   message. A machine that was suspended may not count that time.
//! - So for what must never be done twice, count on the token: what is written with [`Ownership::txn`] is written only
//!   while this node leads, whatever happens; other stores can refuse what carries an older [`Ownership::token`].
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
//!     println!("it runs here: {scheduler:?}");
//! }
//! singleton.stop().await;
//! # Ok(())
//! # }
//! ```

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    time::Duration,
};

use actix::{Actor, Addr, Context, Message, Recipient};
use bytes::Bytes;
use tokio::sync::{oneshot, watch};
use tokio_stream::{StreamExt, wrappers::WatchStream};

use super::{
    election::{Leadership, Ownership},
    held::PAUSE,
    observation::{Subscription, deliver},
    running::Running,
};
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    request::IntoBytes,
};

/// Default time to live.
const TTL: Duration = Duration::from_secs(10);
/// Before the next campaign where one failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The shortest time between two checks of the lease.
const TICK: Duration = Duration::from_millis(10);

impl Client {
    /// An actor that runs on exactly one of the nodes that start it under this name.
    pub fn singleton(&self, name: impl IntoBytes) -> SingletonBuilder {
        SingletonBuilder {
            client: self.clone(),
            name: name.into_bytes(),
            value: Bytes::new(),
            ttl: TTL,
            margin: None,
        }
    }
}

/// Makes a [`Singleton`].
#[derive(Debug, Clone)]
#[must_use = "nothing runs before it is started"]
pub struct SingletonBuilder {
    client: Client,
    name: Bytes,
    value: Bytes,
    ttl: Duration,
    margin: Option<Duration>,
}

impl SingletonBuilder {
    /// How long after a crash of its node the actor can run on another one. Default: 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// What this node proclaims as the leader, for those who observe the election. Default: nothing.
    pub fn value(mut self, value: impl IntoBytes) -> Self {
        self.value = value.into_bytes();
        self
    }

    /// How long before the end of the lease the actor is told to stop. Default: a third of the time to live, which is
    /// also about the most it can be.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Campaigns from now on, and runs the actor on this arbiter whenever this node leads.
    ///
    /// The actor is made with a view of the leadership, for its token and its transactions. When it ends by itself,
    /// or the factory panics, the leadership is given up, and the node campaigns again. Fails where there is no actix
    /// arbiter on this thread, or the margin is more than half of the time to live.
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
            let text = "the margin is more than half of the time to live";
            return Err(Error::invalid(text));
        }
        let (end, ended) = watch::channel(());
        let running = watch::Sender::new(Whereabouts::Elsewhere);
        let (done, finished) = oneshot::channel();
        let singleton = Singleton {
            client: self.client.clone(),
            running: running.subscribe(),
            end,
            finished,
        };
        let runner = Runner {
            builder: self,
            margin,
            factory,
            running,
        };
        actix_rt::spawn(async move {
            runner.run(ended).await;
            let _ = done.send(());
        });
        Ok(singleton)
    }
}

/// An actor that runs on exactly one node, perhaps this one. Dropped, it is stopped here in the background.
#[must_use = "a singleton that is dropped is stopped"]
pub struct Singleton<A: Actor> {
    client: Client,
    running: watch::Receiver<Whereabouts<A>>,
    end: watch::Sender<()>,
    finished: oneshot::Receiver<()>,
}

impl<A: Actor> Singleton<A> {
    /// The actor, while it runs on this node and has not been told to stop.
    pub fn addr(&self) -> Option<Addr<A>> {
        self.running.borrow().addr()
    }

    /// Waits until it runs on this node.
    pub async fn running(&self) -> Result<Addr<A>> {
        let mut running = self.running.clone();
        let found = running.wait_for(|found| found.addr().is_some()).await;
        let found = found.ok().and_then(|found| found.addr());
        found.ok_or_else(crate::error::Error::shut_down)
    }

    /// Waits until it does not run on this node: it has ended, and not only been told to.
    pub async fn not_running(&self) {
        let mut running = self.running.clone();
        let elsewhere = |found: &Whereabouts<A>| matches!(found, Whereabouts::Elsewhere);
        // An error: it never will.
        let _ = running.wait_for(elsewhere).await;
    }

    /// Tells an actor whether it runs on this node: as it is now, and whenever that changes. A slow actor is told the
    /// newest. Ends with that actor or the singleton, or when the handle is dropped.
    pub fn deliver_to(&self, recipient: Recipient<SingletonEvent<A>>) -> Subscription {
        let events = WatchStream::new(self.running.clone()).filter_map(|found| match found {
            Whereabouts::Here(addr) => Some(SingletonEvent::RunsHere(addr)),
            Whereabouts::Ending => None,
            Whereabouts::Elsewhere => Some(SingletonEvent::RunsElsewhere),
        });
        deliver(&self.client, events, recipient, None)
    }

    /// Stops it on this node, waits for its end, and lets another node have it.
    pub async fn stop(self) {
        drop(self.end);
        let _ = self.finished.await;
    }
}

/// Where an actor runs that runs on one node only.
#[derive(Debug, Message)]
#[rtype(result = "()")]
#[non_exhaustive]
pub enum SingletonEvent<A: Actor> {
    /// On this node, at this address.
    RunsHere(Addr<A>),
    /// Not on this node; on another one, or for the moment nowhere.
    RunsElsewhere,
}

/// Where it is, as this node knows.
enum Whereabouts<A: Actor> {
    Here(Addr<A>),
    /// Here, until it has ended: it was told to stop.
    Ending,
    Elsewhere,
}

impl<A: Actor> Whereabouts<A> {
    fn addr(&self) -> Option<Addr<A>> {
        match self {
            Self::Here(addr) => Some(addr.clone()),
            Self::Ending | Self::Elsewhere => None,
        }
    }
}

impl<A: Actor> Clone for Whereabouts<A> {
    fn clone(&self) -> Self {
        match self {
            Self::Here(addr) => Self::Here(addr.clone()),
            Self::Ending => Self::Ending,
            Self::Elsewhere => Self::Elsewhere,
        }
    }
}

impl<A: Actor> fmt::Debug for Singleton<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Singleton")
            .field("runs_here", &self.addr().is_some())
            .finish_non_exhaustive()
    }
}

struct Runner<A: Actor, F> {
    builder: SingletonBuilder,
    margin: Duration,
    factory: F,
    running: watch::Sender<Whereabouts<A>>,
}

impl<A, F> Runner<A, F>
where
    A: Actor<Context = Context<A>>,
    F: FnMut(Ownership) -> A,
{
    async fn run(mut self, mut ended: watch::Receiver<()>) {
        loop {
            let pause = match self.term(&mut ended).await {
                Ok(true) => return,
                Ok(false) => PAUSE,
                Err(error) if error.kind() == ErrorKind::Shutdown => return,
                Err(error) => {
                    tracing::warn!(%error, "a candidate for a singleton tries again");
                    AFTER_FAILURE
                }
            };
            tokio::select! {
                _ = ended.changed() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One session: campaigns, runs the actor, stops it. Whether that was asked for.
    async fn term(&mut self, ended: &mut watch::Receiver<()>) -> Result<bool> {
        let builder = &self.builder;
        let campaign = async {
            let session = builder.client.session(builder.ttl).await?;
            let election = session.election(builder.name.clone());
            let leadership = election.campaign(builder.value.clone()).await?;
            Ok::<_, Error>((session, leadership))
        };
        let (session, leadership) = tokio::select! {
            biased;
            _ = ended.changed() => return Ok(true),
            led = campaign => led?,
        };
        let held = (*leadership).clone();
        let factory = AssertUnwindSafe(|| (self.factory)(held.clone()));
        let Ok(actor) = catch_unwind(factory) else {
            tracing::error!(key = ?held.key(), "the factory of a singleton panicked");
            leadership.resign().await?;
            return Err(Error::new(
                ErrorKind::Other,
                Outcome::Rejected,
                "the actor could not be made",
            ));
        };
        let mut actor = Running::start(actor, self.margin, move || held.remaining());
        self.running
            .send_replace(Whereabouts::Here(actor.addr.clone()));
        let end = tokio::select! {
            biased;
            () = endangered(&leadership, self.margin) => End::Endangered,
            _ = ended.changed() => End::Asked,
            () = actor.ended() => End::ByItself,
        };
        self.running.send_replace(Whereabouts::Ending);
        stop(actor, &leadership).await;
        self.running.send_replace(Whereabouts::Elsewhere);
        // Only now may somebody else lead. Where nobody can be told, dropping the two goes on trying.
        if end != End::Endangered {
            leadership.resign().await?;
            session.close().await?;
        }
        Ok(end == End::Asked)
    }
}

/// Why the actor does not run here any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Asked,
    Endangered,
    ByItself,
}

/// Waits until the leadership is lost, or certain for no longer than the margin.
async fn endangered(leadership: &Leadership, margin: Duration) {
    let mut lost = pin!(leadership.lost());
    loop {
        let spare = leadership.remaining().saturating_sub(margin);
        if spare.is_zero() {
            return;
        }
        tokio::select! {
            _ = &mut lost => return,
            () = tokio::time::sleep(spare.max(TICK)) => {}
        }
    }
}

/// Stops the actor and waits for its end, however long that takes.
async fn stop<A: Actor<Context = Context<A>>>(mut actor: Running<A>, leadership: &Leadership) {
    actor.stop();
    let remaining = leadership.remaining();
    let in_time = tokio::time::timeout(remaining, actor.ended()).await;
    if in_time.is_err() {
        tracing::error!(
            key = ?leadership.key(),
            "an actor that should run on one node only has not ended in time: it may run on two"
        );
        actor.ended().await;
    }
}
