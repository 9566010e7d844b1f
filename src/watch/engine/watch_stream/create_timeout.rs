//! Decides when a member takes too long to respond to creates.
//!
//! The stream's actor checks once per [`CHECK_INTERVAL`] while creates are in flight.

use std::time::Duration;

/// Time between two checks. Members respond to creates at once, so a create that is in flight for two checks makes its
/// member suspect.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of further checks after which the stream leaves a member that sends nothing, even if its health is fine.
const MAX_SILENT_CHECKS: u32 = 2;
/// Number of further checks after which the stream leaves a member that sends responses for other watches: it may be
/// busy with many events.
const MAX_BUSY_CHECKS: u32 = 5;

/// Result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CreateCheck {
    /// The oldest create in flight is another one than at the last check.
    Advancing,
    /// The response to the oldest create is overdue.
    Suspect,
    /// The response took too long: the stream has to leave the member.
    GiveUp,
}

/// Age of the oldest create in flight, in checks.
#[derive(Debug, Default)]
pub(super) struct CreateTimeout {
    oldest: Option<i64>,
    responses: u64,
    checks: u32,
    /// Checks since the last response of any kind.
    silent_checks: u32,
}

impl CreateTimeout {
    /// Checks the oldest create in flight. `responses` is the number of responses on the stream so far.
    pub(super) fn check(&mut self, oldest: i64, responses: u64) -> CreateCheck {
        if self.oldest != Some(oldest) {
            *self = Self {
                oldest: Some(oldest),
                responses,
                ..Self::default()
            };
            return CreateCheck::Advancing;
        }
        self.checks += 1;
        self.silent_checks += 1;
        if self.responses != responses {
            self.responses = responses;
            self.silent_checks = 0;
        }
        if self.silent_checks > MAX_SILENT_CHECKS || self.checks > MAX_BUSY_CHECKS {
            CreateCheck::GiveUp
        } else {
            CreateCheck::Suspect
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CreateCheck::*, CreateTimeout};

    #[test]
    fn creates_with_responses_are_advancing() {
        let mut timeout = CreateTimeout::default();
        for oldest in 1..100 {
            assert_eq!(timeout.check(oldest, 0), Advancing);
        }
    }

    #[test]
    fn silent_stream_is_given_up_before_busy_one() {
        let mut timeout = CreateTimeout::default();
        let checks: Vec<_> = (0..4).map(|_| timeout.check(7, 3)).collect();
        assert_eq!(checks, [Advancing, Suspect, Suspect, GiveUp]);
        let mut timeout = CreateTimeout::default();
        let checks: Vec<_> = (0..7)
            .map(|responses| timeout.check(7, responses))
            .collect();
        assert_eq!(checks[..2], [Advancing, Suspect]);
        assert_eq!(checks[5..], [Suspect, GiveUp]);
    }
}
