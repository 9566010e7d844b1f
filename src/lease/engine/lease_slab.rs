//! Slots for the leases that a client keeps alive.
//!
//! A slot number finds its lease without hashing. With ten thousand leases, memory lookups are a large part of the cost
//! of a keepalive.

/// Position of a lease. A slot that is used again has another generation, so an old value finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseSlot {
    index: u32,
    generation: u32,
}

impl LeaseSlot {
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}

/// Leases by slot.
pub(crate) struct LeaseSlab<T> {
    entries: Vec<SlabEntry<T>>,
    free: Vec<u32>,
}

struct SlabEntry<T> {
    generation: u32,
    lease: Option<T>,
}

impl<T> SlabEntry<T> {
    const EMPTY: Self = Self {
        generation: 0,
        lease: None,
    };
}

impl<T> LeaseSlab<T> {
    /// Creates a slab whose index 0 is never assigned, so that the owner can use it for itself.
    pub(crate) fn new() -> Self {
        Self {
            entries: vec![SlabEntry::EMPTY],
            free: Vec::new(),
        }
    }

    /// Stores the lease that `create` returns for its slot.
    pub(crate) fn insert(&mut self, create: impl FnOnce(LeaseSlot) -> T) -> LeaseSlot {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(SlabEntry::EMPTY);
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let entry = &mut self.entries[index as usize];
        let slot = LeaseSlot {
            index,
            generation: entry.generation,
        };
        entry.lease = Some(create(slot));
        slot
    }

    pub(crate) fn remove(&mut self, slot: LeaseSlot) -> Option<T> {
        let entry = self.entries.get_mut(slot.index as usize)?;
        if entry.generation != slot.generation {
            return None;
        }
        let removed = entry.lease.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot.index);
        Some(removed)
    }

    pub(crate) fn get_mut(&mut self, slot: LeaseSlot) -> Option<&mut T> {
        let entry = self.entries.get_mut(slot.index as usize)?;
        let is_current = entry.generation == slot.generation;
        entry.lease.as_mut().filter(|_| is_current)
    }

    /// Returns the lease that is at an index now.
    pub(crate) fn at(&mut self, index: u32) -> Option<(LeaseSlot, &mut T)> {
        let entry = self.entries.get_mut(index as usize)?;
        let slot = LeaseSlot {
            index,
            generation: entry.generation,
        };
        entry.lease.as_mut().map(|lease| (slot, lease))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let entries = (0..).zip(&self.entries);
        entries.filter_map(|(index, entry)| Some((index, entry.lease.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_slot_does_not_find_the_next_lease() {
        let mut slab = LeaseSlab::new();
        let first = slab.insert(|_| "first");
        assert!(first.index() > 0, "index 0 is never assigned");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert(|_| "second");
        assert_eq!(second.index(), first.index(), "slots are used again");
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get_mut(second), Some(&mut "second"));
        assert_eq!(slab.at(second.index()), Some((second, &mut "second")));
    }

    #[test]
    fn iteration_skips_removed_leases() {
        let mut slab = LeaseSlab::new();
        let slots: Vec<_> = (0..5).map(|n| slab.insert(|_| n)).collect();
        slab.remove(slots[2]);
        let found: Vec<_> = slab.iter().map(|(_, n)| *n).collect();
        assert_eq!(found, [0, 1, 3, 4]);
    }
}
