//! The keys of a request: one key, a prefix, a range, or all keys from a first key on.

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Outcome};

/// etcd encodes both "no end" and "the first possible key" as one zero byte.
const ZERO: Bytes = Bytes::from_static(&[0]);

/// A key and the end of the range that starts there.
#[derive(Debug, Clone)]
pub(crate) struct KeyRange {
    key: Bytes,
    end: RangeEnd,
    /// Whether two different ends were chosen. Reported when the request is sent.
    conflict: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RangeEnd {
    SingleKey,
    Prefix,
    Before(Bytes),
    Unbounded,
}

impl KeyRange {
    pub(crate) fn key(key: Bytes) -> Self {
        Self {
            key,
            end: RangeEnd::SingleKey,
            conflict: false,
        }
    }

    pub(crate) fn prefix(&mut self) {
        self.set_end(RangeEnd::Prefix);
    }

    pub(crate) fn until(&mut self, end: Bytes) {
        self.set_end(RangeEnd::Before(end));
    }

    pub(crate) fn unbounded(&mut self) {
        self.set_end(RangeEnd::Unbounded);
    }

    fn set_end(&mut self, end: RangeEnd) {
        self.conflict |= self.end != RangeEnd::SingleKey && self.end != end;
        self.end = end;
    }

    /// Whether the range can contain more than one key.
    pub(crate) fn is_range(&self) -> bool {
        self.end != RangeEnd::SingleKey
    }

    /// Returns the key and the range end as etcd encodes them.
    pub(crate) fn resolve(&self) -> Result<(Bytes, Bytes), Error> {
        if self.conflict {
            return Err(Error::invalid(
                "`prefix`, `range` and `from_key` exclude each other; choose one",
            ));
        }
        let key = self.key.clone();
        match &self.end {
            RangeEnd::Prefix | RangeEnd::Unbounded if key.is_empty() => Ok((ZERO, ZERO)),
            _ if key.is_empty() => Err(Error::new(
                ErrorKind::EmptyKey,
                Outcome::NotSent,
                "the key is empty",
            )),
            RangeEnd::SingleKey => Ok((key, Bytes::new())),
            RangeEnd::Prefix => {
                let end = after_prefix(&key);
                Ok((key, end))
            }
            RangeEnd::Unbounded => Ok((key, ZERO)),
            RangeEnd::Before(end) if *end <= key => Err(Error::invalid(
                "the end of the range must be greater than its first key",
            )),
            RangeEnd::Before(end) => {
                let end = end.clone();
                Ok((key, end))
            }
        }
    }
}

/// Implements `prefix`, `range` and `from_key` for a type with a field `range`.
macro_rules! key_range_methods {
    ($($type:tt)+) => {
        impl $($type)+ {
            /// Selects all keys that start with the key; with an empty key, all keys. Default: the key alone.
            pub fn prefix(mut self) -> Self {
                self.range.prefix();
                self
            }

            /// Selects all keys from the key up to, but not including, `end`. Default: the key alone.
            pub fn range(mut self, end: impl $crate::request::IntoBytes) -> Self {
                self.range.until(end.into_bytes());
                self
            }

            /// Selects the key and all keys after it. Default: the key alone.
            pub fn from_key(mut self) -> Self {
                self.range.unbounded();
                self
            }
        }
    };
}
pub(crate) use key_range_methods;

/// Returns the first key after all keys with this prefix.
pub(crate) fn after_prefix(prefix: &[u8]) -> Bytes {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end.into()
        }
        None => ZERO,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(
        key: &'static [u8],
        choose: impl FnOnce(&mut KeyRange),
    ) -> Result<(Bytes, Bytes), Error> {
        let mut range = KeyRange::key(Bytes::from_static(key));
        choose(&mut range);
        range.resolve()
    }

    #[test]
    fn empty_key_needs_an_explicit_range() {
        assert_eq!(range(b"", |_| {}).unwrap_err().kind(), ErrorKind::EmptyKey);
        assert_eq!(range(b"", KeyRange::prefix).unwrap(), (ZERO, ZERO));
        assert_eq!(range(b"", KeyRange::unbounded).unwrap(), (ZERO, ZERO));
    }

    #[test]
    fn prefix_of_highest_bytes_has_no_end() {
        assert_eq!(range(b"\xff\xff", KeyRange::prefix).unwrap().1, ZERO);
        assert_eq!(
            range(b"a\xff", KeyRange::prefix).unwrap().1,
            Bytes::from_static(b"b")
        );
    }

    #[test]
    fn conflicting_and_empty_ranges_are_rejected() {
        let both = range(b"a", |range| {
            range.prefix();
            range.unbounded();
        });
        assert_eq!(both.unwrap_err().kind(), ErrorKind::InvalidArgument);
        let twice = range(b"a", |range| {
            range.prefix();
            range.prefix();
        });
        assert!(twice.is_ok());
        for end in ["a", ""] {
            let backwards = range(b"a", |range| range.until(Bytes::from(end)));
            assert_eq!(backwards.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }

    proptest! {
        #[test]
        fn prefix_range_matches_keys_with_the_prefix(
            prefix in proptest::collection::vec(any::<u8>(), 1..5),
            key in proptest::collection::vec(any::<u8>(), 0..6),
        ) {
            let end = after_prefix(&prefix);
            let inside = key >= prefix && (end == ZERO || key.as_slice() < &end[..]);
            prop_assert_eq!(inside, key.starts_with(&prefix));
        }
    }
}
