//! The bounds of revisions in a read, applied by the client.
//!
//! etcd reads the whole range for every request with such bounds, whatever its limit is, and refuses them for
//! `RangeStream`. So a range that is read in parts is read without them.

use super::KeyValue;
use crate::proto::RangeRequest;

/// Bounds of the creation revision and of the revision of the last change; 0 means no bound.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RevisionFilter {
    created: (i64, i64),
    changed: (i64, i64),
}

impl RevisionFilter {
    /// Removes the bounds from a request.
    pub(super) fn take_from(request: &mut RangeRequest) -> Self {
        let take = std::mem::take::<i64>;
        Self {
            created: (
                take(&mut request.min_create_revision),
                take(&mut request.max_create_revision),
            ),
            changed: (
                take(&mut request.min_mod_revision),
                take(&mut request.max_mod_revision),
            ),
        }
    }

    /// Returns whether the key-value is within the bounds.
    pub(super) fn allows(&self, kv: &KeyValue) -> bool {
        let within = |revision: i64, (min, max): (i64, i64)| {
            revision >= min && (max == 0 || revision <= max)
        };
        within(kv.create_revision, self.created) && within(kv.mod_revision, self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(create_revision: i64, mod_revision: i64) -> KeyValue {
        KeyValue {
            create_revision,
            mod_revision,
            ..KeyValue::default()
        }
    }

    #[test]
    fn bounds_are_inclusive() {
        let mut request = RangeRequest {
            min_create_revision: 3,
            max_create_revision: 5,
            min_mod_revision: 4,
            max_mod_revision: 9,
            ..RangeRequest::default()
        };
        let filter = RevisionFilter::take_from(&mut request);
        assert_eq!(request, RangeRequest::default());
        assert!(filter.allows(&kv(3, 4)) && filter.allows(&kv(5, 9)));
        for (create_revision, mod_revision) in [(2, 4), (6, 6), (3, 3), (5, 10)] {
            assert!(!filter.allows(&kv(create_revision, mod_revision)));
        }
    }

    #[test]
    fn zero_is_no_bound() {
        let filter = RevisionFilter::take_from(&mut RangeRequest::default());
        assert!(filter.allows(&kv(1, i64::MAX)));
    }
}
