//! Decides on which connections the hub may open a watch stream now.
//!
//! A watch whose stream ended gets a new stream at once, on another member if possible. Two rules prevent a busy loop.
//! A connection that refused a stream, or closed together with one, is dead: its generation is not used again, even
//! while the snapshot of ready members still contains it. A member whose stream ended before the response to any
//! create, although its connection works, is not used for a while; the delay grows with each such stream.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::{
    connection::EndpointId,
    runtime::backoff::{Backoff, BackoffTimer},
};

/// Delays of a member that responds to no create: 50 ms, doubled each time up to 3 s, shortened by up to a half.
const BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(3)).jitter(0.5);

/// Failures of each member's watch streams.
#[derive(Debug, Default)]
pub(super) struct MemberBackoff {
    members: HashMap<EndpointId, MemberFailures>,
}

#[derive(Debug)]
struct MemberFailures {
    /// Newest generation of the member's connection that is known to be dead.
    dead_generation: Option<u64>,
    backoff: BackoffTimer,
    blocked_until: Option<Instant>,
}

impl Default for MemberFailures {
    fn default() -> Self {
        Self {
            dead_generation: None,
            backoff: BACKOFF.start(),
            blocked_until: None,
        }
    }
}

impl MemberBackoff {
    /// Returns whether a stream may be opened on that connection now.
    pub(super) fn allows(&self, id: EndpointId, generation: u64, now: Instant) -> bool {
        self.members.get(&id).is_none_or(|member| {
            member.dead_generation.is_none_or(|dead| dead < generation)
                && member.blocked_until.is_none_or(|until| until <= now)
        })
    }

    /// Records that a connection is dead.
    pub(super) fn connection_died(&mut self, id: EndpointId, generation: u64) {
        let member = self.members.entry(id).or_default();
        member.dead_generation = member.dead_generation.max(Some(generation));
    }

    /// Records that a stream ended before the member responded to any create on it. `random` lies between 0 and 1.
    pub(super) fn create_response_missing(&mut self, id: EndpointId, now: Instant, random: f64) {
        let member = self.members.entry(id).or_default();
        // Half of `random` selects from the lower half of the jitter: delays only become shorter.
        member.blocked_until = Some(now + member.backoff.next_delay(random / 2.0));
    }

    /// Records that the member responded to a create.
    pub(super) fn create_response_received(&mut self, id: EndpointId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.backoff.reset();
            member.blocked_until = None;
        }
    }

    /// Returns when the next blocked member may be used again.
    pub(super) fn next_allowed(&self, now: Instant) -> Option<Instant> {
        self.members
            .values()
            .filter_map(|member| member.blocked_until)
            .filter(|until| *until > now)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: EndpointId = EndpointId(1);

    #[test]
    fn dead_connection_is_not_used_but_its_successor_is() {
        let (mut backoff, now) = (MemberBackoff::default(), Instant::now());
        assert!(backoff.allows(ID, 3, now));
        backoff.connection_died(ID, 3);
        backoff.connection_died(ID, 2);
        assert!(!backoff.allows(ID, 3, now));
        assert!(backoff.allows(ID, 4, now));
        assert!(backoff.allows(EndpointId(2), 3, now));
    }

    #[test]
    fn missing_create_responses_block_member_longer_each_time() {
        let (mut backoff, mut now) = (MemberBackoff::default(), Instant::now());
        for expected in [50, 100, 200, 400, 800, 1600, 3000, 3000] {
            backoff.create_response_missing(ID, now, 1.0);
            let until = now + Duration::from_millis(expected);
            assert_eq!(backoff.next_allowed(now), Some(until));
            assert!(!backoff.allows(ID, 1, until - Duration::from_millis(1)));
            assert!(backoff.allows(ID, 1, until));
            now = until;
        }
        backoff.create_response_received(ID);
        backoff.create_response_missing(ID, now, 0.0);
        assert!(backoff.allows(ID, 1, now + Duration::from_millis(25)));
    }
}
