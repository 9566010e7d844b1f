//! Decides which writes form a transaction, and when it may be sent.
//!
//! A chunk is a run of consecutive writes of the input. It ends at the limit of operations, at the limit of bytes, or
//! before a key that is already in the chunk (etcd rejects a transaction that writes a key twice) or in flight (the
//! later write could overtake the earlier one). In the last case, the next chunk waits until that key is written.

use std::{
    collections::{HashSet, VecDeque},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;

use super::BulkWrite;

/// The limits of a chunk. They only shrink, when the server refuses a chunk.
#[derive(Debug)]
pub(super) struct ChunkLimits {
    ops: AtomicUsize,
    bytes: AtomicUsize,
}

impl ChunkLimits {
    pub(super) fn new(ops: usize, bytes: usize) -> Self {
        Self {
            ops: AtomicUsize::new(ops.max(1)),
            bytes: AtomicUsize::new(bytes.max(1)),
        }
    }

    pub(super) fn ops(&self) -> usize {
        self.ops.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Remembers that the server refused a chunk with this many operations.
    pub(super) fn refused_ops(&self, ops: usize) {
        self.ops.fetch_min((ops / 2).max(1), Relaxed);
    }

    /// Remembers that the server refused a chunk of this size.
    pub(super) fn refused_bytes(&self, bytes: usize) {
        self.bytes.fetch_min((bytes / 2).max(1), Relaxed);
    }

    /// Returns whether writes of this number and size may be sent as one chunk. A single write always may.
    pub(super) fn allow(&self, writes: &[BulkWrite]) -> bool {
        writes.len() <= 1 || (writes.len() <= self.ops() && encoded_size(writes) <= self.bytes())
    }
}

pub(super) fn encoded_size(writes: &[BulkWrite]) -> usize {
    writes.iter().map(BulkWrite::encoded_size).sum()
}

/// Consecutive writes, each of a different key.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Position of the first write in the input.
    pub(super) start: u64,
    pub(super) writes: Vec<BulkWrite>,
}

/// The writes that wait for a chunk, and the keys in flight.
#[derive(Debug, Default)]
pub(super) struct ChunkPlanner {
    waiting: VecDeque<BulkWrite>,
    waiting_bytes: usize,
    /// Position of the first waiting write in the input.
    position: u64,
    keys_in_flight: HashSet<Bytes>,
}

impl ChunkPlanner {
    pub(super) fn push(&mut self, write: BulkWrite) {
        self.waiting_bytes += write.encoded_size();
        self.waiting.push_back(write);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of writes in the input so far.
    pub(super) fn accepted(&self) -> u64 {
        self.position + self.waiting.len() as u64
    }

    /// Returns whether the waiting writes fill a chunk. Then no more should be pushed.
    pub(super) fn is_full(&self, limits: &ChunkLimits) -> bool {
        self.waiting.len() >= limits.ops() || self.waiting_bytes >= limits.bytes()
    }

    /// Takes the next chunk; `None` if nothing waits, or if the first key is in flight.
    pub(super) fn next_chunk(&mut self, limits: &ChunkLimits) -> Option<Chunk> {
        let (mut writes, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.waiting.front() {
            let size = next.encoded_size();
            let fits = writes.len() < limits.ops() && bytes + size <= limits.bytes();
            if !(writes.is_empty() || fits) || !self.keys_in_flight.insert(next.key().clone()) {
                break;
            }
            bytes += size;
            writes.extend(self.waiting.pop_front());
        }
        self.waiting_bytes -= bytes;
        let start = self.position;
        self.position += writes.len() as u64;
        (!writes.is_empty()).then_some(Chunk { start, writes })
    }

    /// Allows later writes of these keys.
    pub(super) fn completed(&mut self, writes: &[BulkWrite]) {
        for write in writes {
            self.keys_in_flight.remove(write.key());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn planner(keys: &[&'static str]) -> ChunkPlanner {
        let mut planner = ChunkPlanner::default();
        for key in keys {
            planner.push(BulkWrite::put(*key, "v"));
        }
        planner
    }

    fn keys(chunk: Option<&Chunk>) -> Vec<&[u8]> {
        let writes = chunk.into_iter().flat_map(|chunk| &chunk.writes);
        writes.map(|write| &write.key()[..]).collect()
    }

    #[test]
    fn chunk_ends_at_operation_limit() {
        let limits = ChunkLimits::new(2, 1 << 20);
        let mut planner = planner(&["a", "b", "c"]);
        assert!(planner.is_full(&limits));
        assert_eq!(keys(planner.next_chunk(&limits).as_ref()), [b"a", b"b"]);
        assert!(!planner.is_full(&limits));
        let last = planner.next_chunk(&limits).unwrap();
        assert_eq!((keys(Some(&last)), last.start), (vec![&b"c"[..]], 2));
        assert!(planner.is_empty());
    }

    #[test]
    fn large_write_has_its_own_chunk() {
        let limits = ChunkLimits::new(128, 200);
        let mut planner = ChunkPlanner::default();
        planner.push(BulkWrite::put("a", "v"));
        planner.push(BulkWrite::put("b", vec![0; 1000]));
        planner.push(BulkWrite::put("c", "v"));
        for expected in [b"a", b"b", b"c"] {
            assert_eq!(keys(planner.next_chunk(&limits).as_ref()), [expected]);
        }
    }

    #[test]
    fn repeated_key_waits_for_its_predecessor() {
        let limits = ChunkLimits::new(128, 1 << 20);
        let mut planner = planner(&["a", "b", "a", "c"]);
        let first = planner.next_chunk(&limits).unwrap();
        assert_eq!(keys(Some(&first)), [b"a", b"b"]);
        assert!(planner.next_chunk(&limits).is_none());
        planner.completed(&first.writes);
        assert_eq!(keys(planner.next_chunk(&limits).as_ref()), [b"a", b"c"]);
    }

    #[test]
    fn refused_chunk_halves_the_limits_for_good() {
        let limits = ChunkLimits::new(128, 1 << 20);
        limits.refused_ops(128);
        limits.refused_ops(100);
        limits.refused_bytes(5000);
        assert_eq!((limits.ops(), limits.bytes()), (50, 2500));
        limits.refused_ops(1);
        assert_eq!(limits.ops(), 1);
    }

    proptest! {
        /// Chunks complete in a random order; the limits shrink at random.
        #[test]
        fn chunks_keep_order_and_limits(
            input in proptest::collection::vec((0..12_u8, 0..60_usize), 1..120),
            choices in proptest::collection::vec(any::<u8>(), 1..64),
            max_ops in 1..10_usize,
            max_bytes in 40..400_usize,
        ) {
            let limits = ChunkLimits::new(max_ops, max_bytes);
            let mut planner = ChunkPlanner::default();
            for (key, size) in &input {
                planner.push(BulkWrite::put([*key], vec![0; *size]));
            }
            prop_assert_eq!(planner.accepted(), input.len() as u64);
            let mut choices = choices.into_iter().cycle();
            let mut in_flight: Vec<Chunk> = Vec::new();
            let mut written: HashMap<u8, Vec<u64>> = HashMap::new();
            let mut next = 0;
            while !planner.is_empty() || !in_flight.is_empty() {
                let choice = choices.next().unwrap_or(0);
                if choice == 7 {
                    limits.refused_ops(limits.ops());
                }
                let chunk = if in_flight.is_empty() || choice % 3 == 0 {
                    planner.next_chunk(&limits)
                } else {
                    None
                };
                let Some(chunk) = chunk else {
                    // With nothing in flight, no key blocks a chunk.
                    prop_assert!(!in_flight.is_empty(), "the planner is stuck");
                    let done = in_flight.swap_remove(usize::from(choice) % in_flight.len());
                    for (position, write) in (done.start..).zip(&done.writes) {
                        written.entry(write.key()[0]).or_default().push(position);
                    }
                    planner.completed(&done.writes);
                    continue;
                };
                prop_assert_eq!(chunk.start, next);
                next += chunk.writes.len() as u64;
                prop_assert!(limits.allow(&chunk.writes));
                let unique: HashSet<_> = chunk.writes.iter().map(BulkWrite::key).collect();
                prop_assert_eq!(unique.len(), chunk.writes.len());
                for write in in_flight.iter().flat_map(|chunk| &chunk.writes) {
                    prop_assert!(!unique.contains(write.key()), "one key twice in flight");
                }
                in_flight.push(chunk);
            }
            prop_assert_eq!(next, input.len() as u64);
            for positions in written.values() {
                prop_assert!(positions.is_sorted(), "a later write overtook an earlier one");
            }
            prop_assert!(planner.keys_in_flight.is_empty());
        }
    }
}
