//! Which connections are worth a stream now. Pure: time and randomness are given.
//!
//! A stream that ends is opened again at once, elsewhere if possible: that is what makes a resume quick. Two things keep
//! it from spinning. A connection that took no stream, or lost one with itself, is dead: its generation is
//! not tried again, even while the snapshot of ready members still names it. A member whose stream ended before any
//! create was answered, on a connection that is well, is left alone for a while, longer each time.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::connection::EndpointId;

const FIRST_REST: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_secs(3);

/// What is held against members.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    records: HashMap<EndpointId, Record>,
}

#[derive(Debug, Default)]
struct Record {
    dead_generation: Option<u64>,
    strikes: u32,
    rests_until: Option<Instant>,
}

impl Pacing {
    /// Whether a stream may be opened on that connection now.
    pub(crate) fn allows(&self, id: EndpointId, generation: u64, now: Instant) -> bool {
        self.records.get(&id).is_none_or(|record| {
            record.dead_generation.is_none_or(|dead| dead < generation)
                && record.rests_until.is_none_or(|until| until <= now)
        })
    }

    /// The connection is gone.
    pub(crate) fn dead(&mut self, id: EndpointId, generation: u64) {
        let record = self.records.entry(id).or_default();
        record.dead_generation = record.dead_generation.max(Some(generation));
    }

    /// A stream ended before the member answered any create on it.
    pub(crate) fn strike(&mut self, id: EndpointId, now: Instant, random: f64) {
        let record = self.records.entry(id).or_default();
        let rest = rest(record.strikes).mul_f64(0.5 + 0.5 * random);
        record.strikes = record.strikes.saturating_add(1);
        record.rests_until = Some(now + rest);
    }

    /// The member answered a create.
    pub(crate) fn answered(&mut self, id: EndpointId) {
        if let Some(record) = self.records.get_mut(&id) {
            record.strikes = 0;
            record.rests_until = None;
        }
    }

    /// When the next member that rests may be tried again.
    pub(crate) fn next_allowed(&self, now: Instant) -> Option<Instant> {
        self.records
            .values()
            .filter_map(|record| record.rests_until)
            .filter(|until| *until > now)
            .min()
    }
}

/// How long to wait after that many setbacks in a row.
pub(crate) fn rest(setbacks: u32) -> Duration {
    FIRST_REST
        .saturating_mul(2u32.saturating_pow(setbacks))
        .min(LONGEST_REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: EndpointId = EndpointId(1);

    #[test]
    fn a_dead_connection_is_never_tried_again_but_its_successor_is() {
        let (mut pacing, now) = (Pacing::default(), Instant::now());
        assert!(pacing.allows(ID, 3, now));
        pacing.dead(ID, 3);
        pacing.dead(ID, 2);
        assert!(!pacing.allows(ID, 3, now));
        assert!(pacing.allows(ID, 4, now));
        assert!(pacing.allows(EndpointId(2), 3, now));
    }

    #[test]
    fn a_member_that_answers_nothing_rests_longer_each_time() {
        let (mut pacing, mut now) = (Pacing::default(), Instant::now());
        for expected in [50, 100, 200, 400, 800, 1600, 3000, 3000] {
            pacing.strike(ID, now, 1.0);
            let until = now + Duration::from_millis(expected);
            assert_eq!(pacing.next_allowed(now), Some(until));
            assert!(!pacing.allows(ID, 1, until - Duration::from_millis(1)));
            assert!(pacing.allows(ID, 1, until));
            now = until;
        }
        pacing.answered(ID);
        pacing.strike(ID, now, 0.0);
        assert!(pacing.allows(ID, 1, now + Duration::from_millis(25)));
    }
}
