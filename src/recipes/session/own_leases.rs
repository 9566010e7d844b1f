//! The latest leases of a session, by which it recognizes its own keys.

/// More leases than can exist at once: a new one is granted only after the loss of the last, and the loss revokes it.
const MAX_LEASES: usize = 8;

/// The latest leases of a session or a registration, oldest first. Keys bound to any of them are its own.
#[derive(Debug, Clone)]
pub(in crate::recipes) struct OwnLeases(Vec<i64>);

impl OwnLeases {
    pub(in crate::recipes) fn new(lease: i64) -> Self {
        Self(vec![lease])
    }

    /// Adds the current lease. Forgets the oldest one if there are too many.
    pub(in crate::recipes) fn push(&mut self, lease: i64) {
        if self.0.len() == MAX_LEASES {
            self.0.remove(0);
        }
        self.0.push(lease);
    }

    pub(in crate::recipes) fn current(&self) -> i64 {
        self.0.last().copied().unwrap_or_default()
    }

    pub(in crate::recipes) fn contains(&self, lease: i64) -> bool {
        self.0.contains(&lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_latest_leases_are_remembered() {
        let mut leases = OwnLeases::new(1);
        for lease in 2..=1_000 {
            leases.push(lease);
            assert_eq!(leases.current(), lease);
            assert!(leases.0.len() <= MAX_LEASES);
        }
        assert!(leases.contains(1_000) && leases.contains(999));
        assert!(!leases.contains(1));
    }
}
