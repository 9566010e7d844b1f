//! Finds frames in the bytes of an HTTP/2 connection. Payloads are skipped, except that of GOAWAY.

use bytes::{BufMut, Bytes, BytesMut};

/// Type of a HEADERS frame.
pub(super) const HEADERS: u8 = 1;
/// Type of a GOAWAY frame.
pub(super) const GOAWAY: u8 = 7;
/// Length of a frame header.
pub(super) const FRAME_HEADER: usize = 9;
/// Length of the last stream id and the error code in a GOAWAY.
const GOAWAY_FIELDS: usize = 8;
/// Number of bytes of a GOAWAY that are kept; debug data can be long.
const MAX_GOAWAY: usize = GOAWAY_FIELDS + 64;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) kind: u8,
    pub(super) stream: u32,
    /// Length of the payload.
    length: usize,
}

/// Finds the headers of frames in a stream of bytes.
#[derive(Debug)]
pub(super) struct FrameScanner {
    /// Remaining bytes of the connection preface or of a payload.
    skip: usize,
    header: [u8; FRAME_HEADER],
    /// Number of bytes in `header`.
    filled: usize,
}

impl FrameScanner {
    /// Returns a scanner for bytes that start with a preface of this length.
    pub(super) fn new(preface: usize) -> Self {
        Self {
            skip: preface,
            header: [0; FRAME_HEADER],
            filled: 0,
        }
    }

    /// Returns the next frame whose header ends in `bytes`, and removes everything up to that header's end.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Option<FrameHead> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                *bytes = &bytes[skipped..];
                continue;
            }
            let copied = (FRAME_HEADER - self.filled).min(bytes.len());
            self.header[self.filled..self.filled + copied].copy_from_slice(&bytes[..copied]);
            self.filled += copied;
            *bytes = &bytes[copied..];
            if self.filled == FRAME_HEADER {
                let [a, b, c, kind, _flags, s1, s2, s3, s4] = self.header;
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                self.filled = 0;
                return Some(FrameHead {
                    kind,
                    stream: u32::from_be_bytes([s1, s2, s3, s4]) & 0x7fff_ffff,
                    length: self.skip,
                });
            }
        }
        None
    }
}

/// A received GOAWAY frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GoAway {
    pub(super) error_code: u32,
    /// The first bytes of the debug data.
    pub(super) debug_data: Bytes,
}

/// Finds GOAWAY frames in the bytes that the member sends. h2 reports a GOAWAY only when the connection ends.
#[derive(Debug)]
pub(super) struct GoAwayScanner {
    frames: FrameScanner,
    /// The payload of a GOAWAY, as far as it has arrived.
    payload: BytesMut,
    /// Number of bytes missing in `payload`.
    missing: usize,
}

impl GoAwayScanner {
    pub(super) fn new() -> Self {
        Self {
            frames: FrameScanner::new(0),
            payload: BytesMut::new(),
            missing: 0,
        }
    }

    /// Returns the last GOAWAY that ends in these bytes.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) -> Option<GoAway> {
        let mut found = None;
        loop {
            if self.missing > 0 {
                let part = &bytes[..self.missing.min(bytes.len())];
                self.payload.put_slice(part);
                self.missing -= part.len();
                if self.missing == 0 {
                    found = self.finish().or(found);
                }
            }
            match self.frames.next(&mut bytes) {
                Some(head) if head.kind == GOAWAY && head.length >= GOAWAY_FIELDS => {
                    self.missing = head.length.min(MAX_GOAWAY);
                }
                Some(_) => {}
                None => return found,
            }
        }
    }

    fn finish(&mut self) -> Option<GoAway> {
        let payload = std::mem::take(&mut self.payload).freeze();
        let code = payload.get(4..GOAWAY_FIELDS)?.first_chunk()?;
        Some(GoAway {
            error_code: u32::from_be_bytes(*code),
            debug_data: payload.slice(GOAWAY_FIELDS..),
        })
    }
}

#[cfg(test)]
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn go_away(debug_data: &[u8]) -> Vec<u8> {
        frame(
            GOAWAY,
            0,
            0,
            &[&[0, 0, 0, 5, 0, 0, 0, 11], debug_data].concat(),
        )
    }

    #[test]
    fn frame_is_found_at_end_of_header() {
        let mut scanner = FrameScanner::new(3);
        assert_eq!(scanner.next(&mut &[b'x'; 3][..]), None);
        let headers = frame(HEADERS, 0, 7, &[0; 30]);
        assert_eq!(scanner.next(&mut &headers[..FRAME_HEADER - 1]), None);
        let mut rest = &headers[FRAME_HEADER - 1..];
        let found = scanner.next(&mut rest).unwrap();
        assert_eq!((found.kind, found.stream), (HEADERS, 7));
        assert_eq!(scanner.next(&mut rest), None);
    }

    #[test]
    fn long_debug_data_is_cut() {
        let mut scanner = GoAwayScanner::new();
        let found = scanner.scan(&go_away(&[b'x'; 10_000])).unwrap();
        assert_eq!(found.debug_data.len(), MAX_GOAWAY - GOAWAY_FIELDS);
        assert_eq!(
            scanner.scan(&frame(GOAWAY, 0, 0, &[0; 7])),
            None,
            "too short"
        );
        assert!(
            scanner.scan(&go_away(b"")).is_some(),
            "the next frame is found"
        );
    }

    proptest! {
        #[test]
        fn goaway_is_found_in_any_chunks(
            frames in proptest::collection::vec((0u8..9, 0usize..50), 0..20),
            chunk_size in 1usize..40,
        ) {
            let mut bytes = Vec::new();
            let mut expected = 0;
            for (kind, payload) in frames {
                if kind == GOAWAY {
                    bytes.extend(go_away(&vec![b'd'; payload]));
                    expected += 1;
                } else {
                    bytes.extend(frame(kind, 0, 3, &vec![0xff; payload]));
                }
            }
            let mut scanner = GoAwayScanner::new();
            let found = bytes.iter().filter_map(|byte| scanner.scan(&[*byte])).count();
            prop_assert_eq!(found, expected);
            let mut scanner = GoAwayScanner::new();
            let found = bytes.chunks(chunk_size).any(|part| scanner.scan(part).is_some());
            prop_assert_eq!(found, expected > 0);
        }
    }
}
