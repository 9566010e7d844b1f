//! One marker slot: which marker each attempt writes, and what a marker in etcd proves.
//!
//! A slot is a key that only one write at a time uses. Each write replaces its value, the marker, under the condition
//! that the slot still has the marker of the previous write. So at most one copy of a write is ever applied, and a copy
//! that arrives late fails its condition: markers never repeat, and the name of a slot is never used again.

use bytes::Bytes;

use crate::kv::{Compare, Put, put};

/// How an attempt has ended, as its marker says. The last character of the marker.
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
    const ALL: [Self; 4] = [Self::Then, Self::Otherwise, Self::Fenced, Self::Cancelled];

    fn letter(self) -> char {
        match self {
            Self::Then => 't',
            Self::Otherwise => 'o',
            Self::Fenced => 'f',
            Self::Cancelled => 'c',
        }
    }
}

/// What is known about the last attempt on a slot, from a read of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotContent {
    /// The attempt has ended.
    Ended(Ending),
    /// The slot still has the marker of the previous attempt.
    Unchanged,
    /// The slot is gone or has a foreign value: the marker proves nothing.
    Lost,
}

/// A slot, and the marker that it has in etcd.
#[derive(Debug, Clone)]
pub(super) struct MarkerSlot {
    key: Bytes,
    lease: i64,
    /// The marker in etcd; `None` if the slot was not created yet.
    marker: Option<Bytes>,
    attempt: u64,
}

impl MarkerSlot {
    /// Creates a slot whose key was never used and is bound to this lease.
    pub(super) fn new(key: Bytes, lease: i64) -> Self {
        Self {
            key,
            lease,
            marker: None,
            attempt: 1,
        }
    }

    pub(super) fn key(&self) -> &Bytes {
        &self.key
    }

    pub(super) fn lease(&self) -> i64 {
        self.lease
    }

    /// Returns the condition that no copy of the attempt has been applied or cancelled.
    pub(super) fn condition(&self) -> Compare {
        match &self.marker {
            // Without the slot, a put that is bound to the lease fails once the lease has ended.
            None => Compare::version(self.key.clone()).eq(0),
            Some(marker) => Compare::value(self.key.clone()).eq(marker),
        }
    }

    /// Returns the operation that ends the attempt.
    pub(super) fn end(&self, ending: Ending) -> Put {
        put(self.key.clone(), self.marker_of(ending)).lease(self.lease)
    }

    /// Interprets the value of the slot.
    pub(super) fn interpret(&self, value: Option<&Bytes>) -> SlotContent {
        let found = |ending: &Ending| value == Some(&self.marker_of(*ending));
        match Ending::ALL.into_iter().find(found) {
            Some(ending) => SlotContent::Ended(ending),
            None if value == self.marker.as_ref() && value.is_some() => SlotContent::Unchanged,
            None => SlotContent::Lost,
        }
    }

    /// Prepares the slot for the next attempt, after the last one has ended.
    pub(super) fn advance(&mut self, ending: Ending) {
        self.marker = Some(self.marker_of(ending));
        self.attempt += 1;
    }

    fn marker_of(&self, ending: Ending) -> Bytes {
        format!("{}{}", self.attempt, ending.letter()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(slot: &MarkerSlot, ending: Ending) -> Bytes {
        slot.end(ending).wire().unwrap().value
    }

    #[test]
    fn only_markers_of_the_attempt_end_it() {
        let mut slot = MarkerSlot::new(Bytes::from("m/1"), 7);
        assert_eq!(slot.interpret(None), SlotContent::Lost);
        for ending in Ending::ALL {
            let value = marker(&slot, ending);
            assert_eq!(slot.interpret(Some(&value)), SlotContent::Ended(ending));
        }
        let first = marker(&slot, Ending::Then);
        slot.advance(Ending::Then);
        assert_eq!(slot.interpret(Some(&first)), SlotContent::Unchanged);
        assert_eq!(slot.interpret(None), SlotContent::Lost);
        assert_eq!(slot.interpret(Some(&Bytes::from("x"))), SlotContent::Lost);
    }

    #[test]
    fn markers_never_repeat() {
        let mut slot = MarkerSlot::new(Bytes::from("m/1"), 7);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            for ending in Ending::ALL {
                assert!(seen.insert(marker(&slot, ending)));
            }
            slot.advance(Ending::Cancelled);
        }
    }
}
