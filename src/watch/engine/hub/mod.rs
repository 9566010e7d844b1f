//! The hub, one per client: decides on which member, and on which of its shared streams, a watch runs.
//!
//! **States.** Each watch has one [`Placement`](actor::Placement): unplaced, queued until a member is usable, or on a
//! stream. The two legs of a hedged watch are on different members, see [`second_legs`]. A watch that requests a stream
//! leaves its current one. The hub itself runs until [`HubShutdown`]. After a panic it removes streams and watches that
//! ended, and sends [`HubRestarted`] to the others, which then request a stream again.
//!
//! **Receives** [`StartWatch`] and [`DeliverWatch`] from the code that opens a watch, [`AttachWatch`],
//! [`DetachWatch`], [`StartSecondLeg`] and [`RequestWatchProgress`] from watches, [`CreateResponseReceived`] and
//! [`WatchStreamEnded`] from streams, and [`HubShutdown`] from the client.
//!
//! **Sends** [`AddWatch`], [`RemoveWatch`], [`SendProgressRequest`] and [`CloseStream`] to streams, [`HubRestarted`],
//! [`SecondLegStarted`] and [`WatchShutdown`] to watches, [`CancelWatch`] to the second leg of an ended watch, and
//! [`AwaitReady`] to the balancer while no member is ready.
//!
//! Decision: [`member_backoff`] (which connections may carry a stream now).
//!
//! [`AwaitReady`]: crate::balancer::messages::AwaitReady
//! [`AddWatch`]: super::watch_stream::AddWatch
//! [`RemoveWatch`]: super::watch_stream::RemoveWatch
//! [`SendProgressRequest`]: super::watch_stream::SendProgressRequest
//! [`CloseStream`]: super::watch_stream::CloseStream
//! [`HubRestarted`]: super::watch_actor::HubRestarted
//! [`SecondLegStarted`]: super::watch_actor::SecondLegStarted
//! [`CancelWatch`]: super::watch_actor::CancelWatch
//! [`WatchShutdown`]: super::watch_actor::WatchShutdown

mod actor;
mod handlers;
mod member_backoff;
mod messages;
mod placement;
mod second_legs;

pub(crate) use actor::{HubActor, WatchStreamSettings};
#[cfg(feature = "test-faults")]
pub(crate) use messages::CrashStreams;
pub(crate) use messages::{
    AttachWatch, CreateResponseReceived, DeliverWatch, DetachWatch, HubShutdown,
    RequestWatchProgress, StartSecondLeg, StartWatch, StreamEndReason, WatchStreamEnded,
};
