//! Decides from the keys of a double barrier in which state its round is. Sends no request.

use crate::kv::KeyValue;

/// The keys of a round that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CompleteRound {
    /// Mod revision of the ready key.
    pub(super) ready_revision: i64,
    /// Largest create revision of a participant's key.
    pub(super) last: i64,
}

impl CompleteRound {
    /// Reads the ready key. A Go client puts an empty value: then all keys that are older take part.
    pub(super) fn from_ready_key(ready: &KeyValue) -> Self {
        let last = std::str::from_utf8(&ready.value).ok();
        let last = last.and_then(|last| last.parse().ok());
        Self {
            ready_revision: ready.mod_revision,
            last: last.unwrap_or(ready.mod_revision - 1),
        }
    }

    /// Returns whether the participant with this token takes part, or `None` if the round was complete before it entered.
    pub(super) fn includes(self, token: i64) -> Option<bool> {
        (self.ready_revision > token).then_some(token <= self.last)
    }
}

/// The state of a round as one participant sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundState {
    /// Others are missing.
    Waiting,
    /// As many as required have entered. The last one of them has this token.
    AllEntered { last: i64 },
    /// The round is complete, with this participant.
    Complete(CompleteRound),
    /// There are enough participants without this one.
    Full,
}

/// Returns the state for the participant with this token, given the create revisions of all participants' keys in
/// ascending order.
pub(super) fn round_state(
    token: i64,
    participants: usize,
    ready: Option<CompleteRound>,
    keys: &[i64],
) -> RoundState {
    if let Some(round) = ready {
        match round.includes(token) {
            Some(true) => return RoundState::Complete(round),
            Some(false) => return RoundState::Full,
            // A round that has not ended yet, or a key that is left from an earlier one.
            None if keys.iter().any(|key| *key <= round.last) => return RoundState::Full,
            None => {}
        }
    }
    let before = keys.iter().filter(|key| **key < token).count();
    if before >= participants {
        return RoundState::Full;
    }
    match keys.get(participants - 1) {
        Some(last) => RoundState::AllEntered { last: *last },
        None => RoundState::Waiting,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn complete(ready_revision: i64, last: i64) -> CompleteRound {
        CompleteRound {
            ready_revision,
            last,
        }
    }

    #[test]
    fn last_required_participant_completes_the_round() {
        let state = |token, keys: &[i64]| round_state(token, 3, None, keys);
        assert_eq!(state(10, &[10]), RoundState::Waiting);
        assert_eq!(state(11, &[10, 11]), RoundState::Waiting);
        let all = RoundState::AllEntered { last: 12 };
        assert_eq!(state(12, &[10, 11, 12]), all);
        // Another participant that reads the same keys completes it as well.
        assert_eq!(state(10, &[10, 11, 12, 13]), all);
        assert_eq!(state(13, &[10, 11, 12, 13]), RoundState::Full);
    }

    #[test]
    fn ready_key_names_the_participants() {
        let round = complete(20, 12);
        let state = |token, keys: &[i64]| round_state(token, 3, Some(round), keys);
        assert_eq!(state(10, &[10, 11, 12]), RoundState::Complete(round));
        // One too many, although another participant has left already.
        assert_eq!(state(13, &[11, 12, 13]), RoundState::Full);
        // Late, while the round has not ended.
        assert_eq!(state(21, &[12, 21]), RoundState::Full);
        // The key of an earlier round is ignored.
        assert_eq!(state(21, &[21]), RoundState::Waiting);
        let all = RoundState::AllEntered { last: 23 };
        assert_eq!(state(23, &[21, 22, 23]), all);
    }

    #[test]
    fn ready_key_of_go_client_includes_all_before_it() {
        let mut ready = KeyValue {
            mod_revision: 20,
            ..KeyValue::default()
        };
        assert_eq!(CompleteRound::from_ready_key(&ready), complete(20, 19));
        ready.value = Bytes::from_static(b"12");
        assert_eq!(CompleteRound::from_ready_key(&ready), complete(20, 12));
    }
}
