//! One marker slot: which marker each attempt writes, and what a marker in etcd proves.
//!
//! A slot is a key that one write at a time uses. Each attempt replaces its value, the marker, under the condition that
//! the slot still has the marker of the previous write. So at most one copy of the write is ever applied, and a copy that
//! arrives late fails its condition: markers never repeat, a condition on the value of a deleted key does not hold, and
//! the name of a slot is never used again.

use bytes::Bytes;

use crate::kv::{Compare, Delete, Put, Txn, delete, put, txn};

/// The marker of a new slot.
const INITIAL: &str = "0";

/// How an attempt has ended. The last character of its marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The operations of `then` were applied.
    Then,
    /// The operations of `otherwise` were applied.
    Otherwise,
    /// The fence did not hold: nothing was applied.
    Fenced,
    /// The marker was replaced before the write arrived: nothing was applied, and never will be.
    Cancelled,
}

impl Ending {
    fn letter(self) -> char {
        match self {
            Self::Then => 't',
            Self::Otherwise => 'o',
            Self::Fenced => 'f',
            Self::Cancelled => 'c',
        }
    }

    fn from_letter(letter: u8) -> Option<Self> {
        [Self::Then, Self::Otherwise, Self::Fenced, Self::Cancelled]
            .into_iter()
            .find(|ending| ending.letter() == char::from(letter))
    }
}

/// What the value of a slot proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotContent {
    /// An attempt of the current write has ended.
    Ended(Ending),
    /// The slot still has the marker of the previous write.
    Unchanged,
    /// The slot is gone or has a foreign value: nothing is proved.
    Lost,
}

/// A slot, and the marker that it has in etcd.
#[derive(Debug, Clone)]
pub(super) struct MarkerSlot {
    key: Bytes,
    lease: i64,
    /// The marker in etcd before the current write.
    marker: Bytes,
    /// Number of the first attempt of the current write.
    first_attempt: u64,
    /// Number of attempts so far, of all writes.
    attempt: u64,
}

impl MarkerSlot {
    /// Returns a slot whose key was never used, and which does not exist yet.
    pub(super) fn new(key: Bytes, lease: i64) -> Self {
        Self {
            key,
            lease,
            marker: Bytes::from_static(INITIAL.as_bytes()),
            first_attempt: 1,
            attempt: 0,
        }
    }

    pub(super) fn key(&self) -> &Bytes {
        &self.key
    }

    pub(super) fn lease(&self) -> i64 {
        self.lease
    }

    /// Returns the transaction that creates the slot. Its condition needs the permission to read, which is needed later.
    pub(super) fn create(&self) -> Txn {
        let initial = put(self.key.clone(), INITIAL).lease(self.lease);
        txn()
            .when(Compare::version(self.key.clone()).eq(0))
            .then(initial)
    }

    /// Numbers the next attempt. `is_first`: it belongs to another write than the last one.
    pub(super) fn begin_attempt(&mut self, is_first: bool) {
        self.attempt += 1;
        if is_first {
            self.first_attempt = self.attempt;
        }
    }

    /// Returns the condition that no attempt of the current write was applied or cancelled.
    pub(super) fn condition(&self) -> Compare {
        Compare::value(self.key.clone()).eq(&self.marker)
    }

    /// Returns the operation that ends the current attempt.
    pub(super) fn end(&self, ending: Ending) -> Put {
        put(self.key.clone(), self.marker_of(ending)).lease(self.lease)
    }

    /// Returns the operation that deletes the slot.
    pub(super) fn delete(&self) -> Delete {
        delete(self.key.clone())
    }

    /// Interprets the value of the slot in etcd.
    pub(super) fn interpret(&self, value: Option<&Bytes>) -> SlotContent {
        let Some(value) = value else {
            return SlotContent::Lost;
        };
        if *value == self.marker {
            return SlotContent::Unchanged;
        }
        self.ending_in(value)
            .map_or(SlotContent::Lost, SlotContent::Ended)
    }

    fn ending_in(&self, value: &[u8]) -> Option<Ending> {
        let (letter, attempt) = value.split_last()?;
        let attempt: u64 = std::str::from_utf8(attempt).ok()?.parse().ok()?;
        let ending = Ending::from_letter(*letter)?;
        (self.first_attempt..=self.attempt)
            .contains(&attempt)
            .then_some(ending)
    }

    /// Sets the marker that the slot has in etcd after the current write.
    pub(super) fn set_marker(&mut self, marker: Bytes) {
        self.marker = marker;
    }

    pub(super) fn marker_of(&self, ending: Ending) -> Bytes {
        format!("{}{}", self.attempt, ending.letter()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDINGS: [Ending; 4] = [
        Ending::Then,
        Ending::Otherwise,
        Ending::Fenced,
        Ending::Cancelled,
    ];

    #[test]
    fn only_attempts_of_the_current_write_end_it() {
        let mut slot = MarkerSlot::new(Bytes::from("m/1"), 7);
        slot.begin_attempt(true);
        let earlier_write = slot.marker_of(Ending::Then);
        // The first write was not sent, so the slot has its initial marker.
        slot.begin_attempt(true);
        let first = slot.marker_of(Ending::Then);
        slot.begin_attempt(false);
        for ending in ENDINGS {
            let value = slot.marker_of(ending);
            assert_eq!(slot.interpret(Some(&value)), SlotContent::Ended(ending));
        }
        assert_eq!(
            slot.interpret(Some(&first)),
            SlotContent::Ended(Ending::Then)
        );
        for foreign in ["", "x", "c", "7t", "2x"] {
            let content = slot.interpret(Some(&Bytes::from(foreign)));
            assert_eq!(content, SlotContent::Lost, "{foreign}");
        }
        assert_eq!(slot.interpret(Some(&earlier_write)), SlotContent::Lost);
        assert_eq!(slot.interpret(None), SlotContent::Lost);
        let initial = Bytes::from_static(INITIAL.as_bytes());
        assert_eq!(slot.interpret(Some(&initial)), SlotContent::Unchanged);
    }

    #[test]
    fn marker_of_a_cancelled_attempt_is_the_next_condition() {
        let mut slot = MarkerSlot::new(Bytes::from("m/1"), 7);
        slot.begin_attempt(true);
        let cancelled = slot.marker_of(Ending::Cancelled);
        slot.set_marker(cancelled.clone());
        slot.begin_attempt(false);
        assert_eq!(slot.interpret(Some(&cancelled)), SlotContent::Unchanged);
    }

    #[test]
    fn markers_never_repeat() {
        let mut slot = MarkerSlot::new(Bytes::from("m/1"), 7);
        let mut seen = std::collections::HashSet::new();
        for n in 0..100 {
            slot.begin_attempt(n % 3 == 0);
            for ending in ENDINGS {
                assert!(seen.insert(slot.marker_of(ending)));
            }
        }
    }
}
