//! `grpc-retry-pushback-ms`: the server's request to delay or stop retries.

use std::time::Duration;

/// Metadata key, in trailers or in the headers of a response without a body.
pub(crate) const PUSHBACK_KEY: &str = "grpc-retry-pushback-ms";

/// A server's instruction about retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pushback {
    /// Retry after this delay.
    After(Duration),
    /// Do not retry.
    Never,
}

impl Pushback {
    /// Parses the value: milliseconds as a signed 32-bit number. A negative or invalid value means
    /// [`Never`](Self::Never), as gRPC defines it.
    pub(crate) fn parse(value: &[u8]) -> Self {
        std::str::from_utf8(value)
            .ok()
            .filter(|text| !text.starts_with('+'))
            .and_then(|text| text.parse::<i32>().ok())
            .and_then(|ms| u64::try_from(ms).ok())
            .map_or(Self::Never, |ms| Self::After(Duration::from_millis(ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_parsed() {
        for (text, ms) in [("0", 0), ("100", 100), ("2147483647", 2_147_483_647)] {
            assert_eq!(
                Pushback::parse(text.as_bytes()),
                Pushback::After(Duration::from_millis(ms))
            );
        }
    }

    #[test]
    fn negative_or_invalid_means_never() {
        for text in ["-1", "", " 5", "+5", "1.5", "5ms", "2147483648", "0x10"] {
            assert_eq!(
                Pushback::parse(text.as_bytes()),
                Pushback::Never,
                "{text:?}"
            );
        }
        assert_eq!(Pushback::parse(&[0xff]), Pushback::Never);
    }
}
