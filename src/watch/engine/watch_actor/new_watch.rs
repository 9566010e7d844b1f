//! Starts the actor of a watch, or of the second leg of a hedged one.

use std::sync::{Arc, Weak};

use actix::{Addr, WeakAddr};
use tokio::time::Instant;

use super::{
    actor::WatchActor,
    hedge_legs::LegRole,
    watch_state::{Gap, WatchOutage, WatchState},
};
use crate::{
    call::Caller,
    proto::Event,
    runtime::supervisor::supervise,
    watch::engine::{
        cursor::Cursor,
        event_buffer::BufferWriter,
        freshness_record::LegFreshness,
        hub::{HubActor, StartSecondLeg, StartWatch},
        known_keys::KnownKeys,
        watch_spec::WatchSpec,
    },
};

/// A watch, or the second leg of one, to be started.
pub(crate) struct NewWatch {
    pub(crate) id: u64,
    pub(crate) hub: WeakAddr<HubActor>,
    pub(crate) caller: Weak<Caller>,
}

/// Initial values that differ between a watch and a second leg.
struct LegStart {
    cursor: Cursor<Event>,
    buffer: BufferWriter,
    freshness: LegFreshness,
    known_keys: Option<Box<KnownKeys>>,
    role: LegRole,
    gap: Gap,
}

impl NewWatch {
    /// Starts the actor of a watch on the current arbiter, and reports it to the code that opens the watch.
    pub(crate) fn start(self, start: StartWatch) -> Addr<WatchActor> {
        let id = self.id;
        let options = &start.spec.options;
        let leg = LegStart {
            cursor: Cursor::new(options.start_revision, options.read_revision),
            buffer: BufferWriter::new(start.buffer),
            freshness: LegFreshness::of_first_leg(start.freshness),
            known_keys: start.known_keys.map(Box::new),
            role: LegRole::first(options.hedged),
            gap: Gap::Opening(start.opened),
        };
        let address = self.supervise(start.spec, leg);
        // Fails if nothing waits any more. The watch then ends when the server has created it.
        let _ = start.started.send((id, address.clone()));
        address
    }

    /// Starts the actor of the second leg of a watch on the current arbiter.
    pub(crate) fn start_second_leg(self, start: StartSecondLeg) -> Addr<WatchActor> {
        let now = Instant::now();
        let leg = LegStart {
            cursor: start.cursor,
            buffer: BufferWriter::of_second_leg(start.buffer),
            freshness: start.freshness,
            known_keys: None,
            role: LegRole::Second(Box::new(start.leg)),
            gap: Gap::Outage(WatchOutage {
                since: now,
                last_error: None,
                _timer: None,
            }),
        };
        self.supervise(start.spec, leg)
    }

    fn supervise(self, spec: Arc<WatchSpec>, leg: LegStart) -> Addr<WatchActor> {
        supervise(
            "watch",
            |_| {},
            |_| WatchActor {
                id: self.id,
                cursor: leg.cursor,
                spec,
                known_keys: leg.known_keys,
                buffer: leg.buffer,
                freshness: leg.freshness,
                hub: self.hub,
                caller: self.caller,
                role: leg.role,
                state: WatchState::BackingOff { gap: leg.gap },
                attempt: 0,
                failures: 0,
                unknown_cancels: 0,
                progress_requests: Vec::new(),
                #[cfg(feature = "test-faults")]
                crash_on_next: false,
            },
        )
    }
}
