//! Creates that a member leaves unanswered. Pure: it is asked at every look.

use std::time::Duration;

/// Creates are answered at once; a member that has not by the next look is suspect.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// After so many looks more, a member that sends nothing at all is left, well as it may be otherwise.
const SILENT: u32 = 2;
/// After so many, one that sends to other watches: a lot of events takes its time.
const BUSY: u32 = 5;

/// What to make of a stream that has creates under way.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The oldest create is another one than at the last look.
    Fine,
    /// It is not answered.
    Suspect,
    /// It will not be.
    GiveUp,
}

/// How long the oldest create has waited.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    oldest: Option<i64>,
    answers: u64,
    looks: u32,
    /// Looks since the last answer of any kind.
    silent: u32,
}

impl Overdue {
    /// Looks at the oldest create without answer, and at how many answers the stream has had.
    pub(super) fn look(&mut self, oldest: i64, answers: u64) -> Look {
        if self.oldest != Some(oldest) {
            *self = Self {
                oldest: Some(oldest),
                answers,
                ..Self::default()
            };
            return Look::Fine;
        }
        self.looks += 1;
        self.silent += 1;
        if self.answers != answers {
            self.answers = answers;
            self.silent = 0;
        }
        if self.silent > SILENT || self.looks > BUSY {
            Look::GiveUp
        } else {
            Look::Suspect
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Look::*, Overdue};

    #[test]
    fn creates_that_are_answered_in_their_turn_are_fine() {
        let mut overdue = Overdue::default();
        for oldest in 1..100 {
            assert_eq!(overdue.look(oldest, 0), Fine);
        }
    }

    #[test]
    fn a_silent_stream_is_given_up_sooner_than_a_busy_one() {
        let mut overdue = Overdue::default();
        let looks: Vec<_> = (0..4).map(|_| overdue.look(7, 3)).collect();
        assert_eq!(looks, [Fine, Suspect, Suspect, GiveUp]);
        let mut overdue = Overdue::default();
        let looks: Vec<_> = (0..7).map(|answers| overdue.look(7, answers)).collect();
        assert_eq!(looks[..2], [Fine, Suspect]);
        assert_eq!(looks[5..], [Suspect, GiveUp]);
    }
}
