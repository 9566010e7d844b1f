//! How far the input is known to be written: the resume point.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;

/// The first writes of the input that are all written, although chunks complete in any order.
#[derive(Debug, Default)]
pub(super) struct WrittenPrefix {
    /// Number of writes before the first one that is not known to be written.
    length: u64,
    /// Key of the last write of the prefix.
    last_key: Option<Bytes>,
    /// Written ranges after the prefix: start, end and last key. Adjacent ranges are one, so there are at most as many
    /// as chunks in flight.
    later: BTreeMap<u64, (u64, Bytes)>,
    /// First position that failed. The prefix cannot grow beyond it.
    first_failure: Option<u64>,
}

impl WrittenPrefix {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn last_key(&self) -> Option<&Bytes> {
        self.last_key.as_ref()
    }

    pub(super) fn written(&mut self, positions: &Range<u64>, last_key: &Bytes) {
        // The prefix never reaches ranges after a failure: they are not stored, so memory is bounded.
        if self
            .first_failure
            .is_some_and(|failure| positions.start > failure)
        {
            return;
        }
        let (mut start, mut end, mut last_key) = (positions.start, positions.end, last_key.clone());
        if let Some((later_end, later_key)) = self.later.remove(&end) {
            (end, last_key) = (later_end, later_key);
        }
        if start == self.length {
            self.length = end;
            self.last_key = Some(last_key);
            return;
        }
        if let Some((&earlier, &(earlier_end, _))) = self.later.range(..start).next_back()
            && earlier_end == start
        {
            start = earlier;
        }
        self.later.insert(start, (end, last_key));
    }

    pub(super) fn failed(&mut self, positions: &Range<u64>) {
        let first = self
            .first_failure
            .map_or(positions.start, |first| first.min(positions.start));
        self.first_failure = Some(first);
        self.later.retain(|start, _| *start < first);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prefix_grows_once_gap_is_closed() {
        let mut prefix = WrittenPrefix::default();
        prefix.written(&(2..4), &Bytes::from("d"));
        assert_eq!((prefix.length(), prefix.last_key()), (0, None));
        prefix.written(&(0..2), &Bytes::from("b"));
        let key = Bytes::from("d");
        assert_eq!((prefix.length(), prefix.last_key()), (4, Some(&key)));
    }

    #[test]
    fn prefix_stops_at_first_failure() {
        let mut prefix = WrittenPrefix::default();
        prefix.failed(&(3..5));
        prefix.written(&(5..9), &Bytes::from("i"));
        prefix.written(&(0..3), &Bytes::from("c"));
        assert_eq!(prefix.length(), 3);
        assert!(prefix.later.is_empty());
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut prefix = WrittenPrefix::default();
        for start in [2, 6, 4, 8] {
            prefix.written(&(start..start + 2), &Bytes::from(start.to_string()));
        }
        assert_eq!(prefix.later, [(2, (10, Bytes::from("8")))].into());
        prefix.written(&(0..2), &Bytes::from("0"));
        assert_eq!((prefix.length(), prefix.later.len()), (10, 0));
        assert_eq!(prefix.last_key(), Some(&Bytes::from("8")));
    }

    proptest! {
        #[test]
        fn prefix_ends_before_first_position_not_written(
            ranges in proptest::collection::vec((1..5_u64, 0..10_u8, any::<u32>()), 1..40),
        ) {
            let mut start = 0;
            let mut reports = Vec::new();
            for (length, kind, order) in ranges {
                // One range in ten fails, one in ten is never reported.
                reports.push((order, start..start + length, kind));
                start += length;
            }
            let missing = reports.iter().find(|(_, _, kind)| *kind < 2);
            let expected = missing.map_or(start, |(_, range, _)| range.start);
            reports.sort_by_key(|(order, ..)| *order);
            let mut prefix = WrittenPrefix::default();
            for (_, range, kind) in &reports {
                match kind {
                    0 => prefix.failed(range),
                    1 => {}
                    _ => prefix.written(range, &Bytes::new()),
                }
                prop_assert!(prefix.length() <= expected);
            }
            prop_assert_eq!(prefix.length(), expected);
        }
    }
}
