//! The actor of one watch: owns the cursor, stays attached to a stream, and fills the consumer's buffer.
//!
//! **States**: see [`WatchState`](watch_state::WatchState).
//!
//! **Receives** [`CancelWatch`], [`BufferDrained`] and [`RequestProgress`] from the consumer, [`UpdateReceived`] from
//! its stream, and [`HubRestarted`], [`SecondLegStarted`] and [`WatchShutdown`] from the hub. Updates and timers carry
//! the number of the attach attempt they belong to; those of older attempts are ignored.
//!
//! **Sends** [`AttachWatch`], [`DetachWatch`], [`StartSecondLeg`] and [`RequestWatchProgress`] to the hub, and writes into the
//! [`EventBuffer`](super::event_buffer::EventBuffer).
//!
//! A hedged watch has two actors, one per leg: see [`hedge_legs`].
//!
//! After a panic the actor restarts with its state: it attaches again and resumes at its cursor.
//!
//! Decisions: [`cursor`](super::cursor) (which events are new and complete), [`cancel_reason`] (what follows a cancel
//! by the server), [`known_keys`](super::known_keys) (what changed during a compaction), [`watch_state`],
//! [`leg_status`] (what to report about the legs of a hedged watch).
//!
//! [`AttachWatch`]: super::hub::AttachWatch
//! [`DetachWatch`]: super::hub::DetachWatch
//! [`RequestWatchProgress`]: super::hub::RequestWatchProgress
//! [`StartSecondLeg`]: super::hub::StartSecondLeg

mod actor;
mod cancel_reason;
mod freshness_report;
mod handlers;
mod hedge_legs;
mod hedging;
mod leg_status;
mod messages;
mod new_watch;
mod regression;
mod resync;
mod stream_loss;
mod token_renewal;
mod watch_state;

pub(crate) use actor::WatchActor;
pub(crate) use cancel_reason::ServerCancel;
pub(crate) use hedge_legs::SecondLeg;
#[cfg(feature = "test-faults")]
pub(crate) use messages::CrashOnNextUpdate;
pub(crate) use messages::{
    BufferDrained, CancelWatch, HubRestarted, RequestProgress, SecondLegStarted, StreamUpdate,
    UpdateReceived, WatchShutdown,
};
pub(crate) use new_watch::NewWatch;
