//! Which keys a request is about: one, a prefix, a range, or everything from a key on.

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Outcome};

/// etcd writes "no end" and "the very first key" as one zero byte.
const ZERO: Bytes = Bytes::from_static(&[0]);

/// A key and how far from there.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    key: Bytes,
    reach: Reach,
    /// The first conflicting choice, told when the request is sent.
    conflict: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    Key,
    Prefix,
    Until(Bytes),
    Onwards,
}

impl Span {
    pub(crate) fn key(key: Bytes) -> Self {
        Self {
            key,
            reach: Reach::Key,
            conflict: false,
        }
    }

    pub(crate) fn prefix(&mut self) {
        self.reach(Reach::Prefix);
    }

    pub(crate) fn until(&mut self, end: Bytes) {
        self.reach(Reach::Until(end));
    }

    pub(crate) fn onwards(&mut self) {
        self.reach(Reach::Onwards);
    }

    fn reach(&mut self, reach: Reach) {
        self.conflict |= self.reach != Reach::Key && self.reach != reach;
        self.reach = reach;
    }

    /// Whether it can hold more than one key.
    pub(crate) fn is_range(&self) -> bool {
        self.reach != Reach::Key
    }

    /// The key and the range end as they go over the wire.
    pub(crate) fn resolve(&self) -> Result<(Bytes, Bytes), Error> {
        if self.conflict {
            return Err(Error::invalid(
                "`prefix`, `range` and `from_key` exclude each other; choose one",
            ));
        }
        let key = self.key.clone();
        match &self.reach {
            Reach::Prefix | Reach::Onwards if key.is_empty() => Ok((ZERO, ZERO)),
            _ if key.is_empty() => Err(Error::new(
                ErrorKind::EmptyKey,
                Outcome::NotSent,
                "the key is empty; for all keys, say so with `.prefix()`",
            )),
            Reach::Key => Ok((key, Bytes::new())),
            Reach::Prefix => {
                let end = after_prefix(&key);
                Ok((key, end))
            }
            Reach::Onwards => Ok((key, ZERO)),
            Reach::Until(end) if *end <= key => Err(Error::invalid(
                "the end of the range is not after its first key",
            )),
            Reach::Until(end) => {
                let end = end.clone();
                Ok((key, end))
            }
        }
    }
}

/// The three ways to say more than one key, for whatever has a `span`.
macro_rules! spans {
    ($($type:tt)+) => {
        impl $($type)+ {
            /// Means all keys that start with the key; with an empty key, all keys.
            pub fn prefix(mut self) -> Self {
                self.span.prefix();
                self
            }

            /// Means all keys from the key up to, not including, `end`.
            pub fn range(mut self, end: impl $crate::request::IntoBytes) -> Self {
                self.span.until(end.into_bytes());
                self
            }

            /// Means the key and all keys after it.
            pub fn from_key(mut self) -> Self {
                self.span.onwards();
                self
            }
        }
    };
}
pub(crate) use spans;

/// The first key after all keys with that prefix.
fn after_prefix(prefix: &[u8]) -> Bytes {
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

    fn span(key: &'static [u8], choose: impl FnOnce(&mut Span)) -> Result<(Bytes, Bytes), Error> {
        let mut span = Span::key(Bytes::from_static(key));
        choose(&mut span);
        span.resolve()
    }

    #[test]
    fn an_empty_key_means_all_keys_only_where_it_is_said() {
        assert_eq!(span(b"", |_| {}).unwrap_err().kind(), ErrorKind::EmptyKey);
        assert_eq!(span(b"", Span::prefix).unwrap(), (ZERO, ZERO));
        assert_eq!(span(b"", Span::onwards).unwrap(), (ZERO, ZERO));
    }

    #[test]
    fn a_prefix_of_highest_bytes_has_no_end() {
        assert_eq!(span(b"\xff\xff", Span::prefix).unwrap().1, ZERO);
        assert_eq!(
            span(b"a\xff", Span::prefix).unwrap().1,
            Bytes::from_static(b"b")
        );
    }

    #[test]
    fn conflicting_and_empty_ranges_are_refused() {
        let both = span(b"a", |span| {
            span.prefix();
            span.onwards();
        });
        assert_eq!(both.unwrap_err().kind(), ErrorKind::InvalidArgument);
        let twice = span(b"a", |span| {
            span.prefix();
            span.prefix();
        });
        assert!(twice.is_ok());
        for end in ["a", ""] {
            let backwards = span(b"a", |span| span.until(Bytes::from(end)));
            assert_eq!(backwards.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }

    proptest! {
        #[test]
        fn a_prefix_range_holds_exactly_the_keys_with_the_prefix(
            prefix in proptest::collection::vec(any::<u8>(), 1..5),
            key in proptest::collection::vec(any::<u8>(), 0..6),
        ) {
            let end = after_prefix(&prefix);
            let inside = key >= prefix && (end == ZERO || key.as_slice() < &end[..]);
            prop_assert_eq!(inside, key.starts_with(&prefix));
        }
    }
}
