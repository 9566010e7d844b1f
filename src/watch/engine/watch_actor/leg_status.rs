//! The states of the two legs of a hedged watch, and what is reported to its consumer.
//!
//! An interruption is reported only when neither leg serves the watch. Its end is reported once.

use crate::watch::engine::leg::Leg;

/// State of a leg, as far as it matters to the other leg and to the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LegStatus {
    /// No member serves the leg.
    Out,
    /// The leg waits until the consumer has read half of its buffer.
    Paused,
    /// The leg's member is behind the revision that the watch has received, and has sent nothing since.
    Behind,
    /// The leg's member serves the watch.
    Serving,
}

/// Reports to the consumer after a leg was created on a member.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LegCreated {
    pub(super) resumed: bool,
    pub(super) regressed: bool,
}

/// The states of both legs.
#[derive(Debug)]
pub(super) struct LegStatuses {
    first: LegStatus,
    second: LegStatus,
    /// Whether an interruption or a pause was reported that has not ended.
    interruption_reported: bool,
}

impl LegStatuses {
    /// Creates the states of a watch that no member has created yet.
    pub(super) fn new() -> Self {
        Self {
            first: LegStatus::Out,
            second: LegStatus::Out,
            interruption_reported: false,
        }
    }

    fn get(&self, leg: Leg) -> LegStatus {
        match leg {
            Leg::First => self.first,
            Leg::Second => self.second,
        }
    }

    fn other(&self, leg: Leg) -> LegStatus {
        match leg {
            Leg::First => self.second,
            Leg::Second => self.first,
        }
    }

    fn set(&mut self, leg: Leg, status: LegStatus) {
        match leg {
            Leg::First => self.first = status,
            Leg::Second => self.second = status,
        }
    }

    /// Records that a member created the leg. `behind` means that the member is behind the revision that the watch has
    /// received: that is of interest only if the other leg does not show that it is the member's fault.
    pub(super) fn created(&mut self, leg: Leg, behind: bool) -> LegCreated {
        let (status, regressed) = if behind {
            (LegStatus::Behind, self.other(leg) != LegStatus::Serving)
        } else {
            (LegStatus::Serving, false)
        };
        self.set(leg, status);
        LegCreated {
            resumed: std::mem::take(&mut self.interruption_reported),
            regressed,
        }
    }

    /// Records that the leg's member sent events or progress, and so has reached the position of the watch.
    pub(super) fn advanced(&mut self, leg: Leg) {
        if self.get(leg) == LegStatus::Behind {
            self.set(leg, LegStatus::Serving);
        }
    }

    /// Records that the leg lost its member. Returns whether to report it: no leg is left.
    pub(super) fn lost(&mut self, leg: Leg) -> bool {
        let was_created = matches!(self.get(leg), LegStatus::Serving | LegStatus::Behind);
        self.set(leg, LegStatus::Out);
        let report = was_created && self.other(leg) == LegStatus::Out;
        self.interruption_reported |= report;
        report
    }

    /// Records that the leg left its member, or its pause, for a reason that is not reported.
    pub(super) fn detached(&mut self, leg: Leg) {
        self.set(leg, LegStatus::Out);
    }

    /// Records that the leg waits for the consumer. Returns whether to report it.
    pub(super) fn paused(&mut self, leg: Leg) -> bool {
        self.set(leg, LegStatus::Paused);
        !std::mem::replace(&mut self.interruption_reported, true)
    }

    /// Returns whether the other leg may still deliver what this leg cannot.
    pub(super) fn other_serves(&self, leg: Leg) -> bool {
        self.other(leg) == LegStatus::Serving
    }

    /// Returns whether the leg is on no member and does not wait for the consumer.
    pub(super) fn is_out(&self, leg: Leg) -> bool {
        self.get(leg) == LegStatus::Out
    }
}

#[cfg(test)]
mod tests {
    use super::{Leg::*, *};

    fn both_serving() -> LegStatuses {
        let mut legs = LegStatuses::new();
        assert_eq!(legs.created(First, false), LegCreated::default());
        assert_eq!(legs.created(Second, false), LegCreated::default());
        legs
    }

    #[test]
    fn only_the_loss_of_both_legs_is_reported() {
        for (one, other) in [(First, Second), (Second, First)] {
            let mut legs = both_serving();
            assert!(!legs.lost(one));
            assert!(legs.lost(other));
            assert!(!legs.lost(other), "a repeated loss is not reported");
            assert!(legs.created(one, false).resumed);
            assert!(!legs.created(other, false).resumed);
        }
    }

    #[test]
    fn pause_of_both_legs_is_reported_once() {
        let mut legs = both_serving();
        assert!(legs.paused(Second));
        assert!(!legs.paused(First));
        assert!(!legs.is_out(Second));
        assert!(legs.created(Second, false).resumed);
        assert!(!legs.created(First, false).resumed);
    }

    #[test]
    fn lost_leg_is_no_outage_beside_paused_leg() {
        let mut legs = both_serving();
        legs.paused(Second);
        assert!(!legs.lost(First));
        assert!(legs.is_out(First) && !legs.is_out(Second));
    }

    #[test]
    fn lagging_member_is_reported_only_without_other_leg() {
        let mut legs = both_serving();
        legs.lost(Second);
        assert!(!legs.created(Second, true).regressed);
        legs.lost(First);
        assert!(
            legs.created(First, true).regressed,
            "both legs are behind: the cluster may be a restored one"
        );
        legs.advanced(First);
        assert!(legs.other_serves(Second));
    }

    #[test]
    fn leg_behind_does_not_cover_compacted_revisions() {
        let mut legs = both_serving();
        legs.lost(Second);
        legs.created(Second, true);
        assert!(!legs.other_serves(First));
        legs.advanced(Second);
        assert!(legs.other_serves(First));
    }
}
