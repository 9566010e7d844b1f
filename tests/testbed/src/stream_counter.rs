//! Counts the HTTP/2 streams a client opens, by reading the frame headers of a plain-text connection that passes by.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;

/// Sees the bytes of one direction of one connection, in any pieces.
#[derive(Debug, Default)]
pub(crate) struct StreamCounter {
    state: State,
}

#[derive(Debug)]
enum State {
    /// This many bytes of the preface were seen.
    Preface(usize),
    /// Collecting the next frame's header.
    Header {
        seen: usize,
        bytes: [u8; FRAME_HEADER],
    },
    /// This many bytes of the frame are still to come.
    Payload(usize),
    /// TLS, HTTP/1 or nonsense: not counted.
    Foreign,
}

impl Default for State {
    fn default() -> Self {
        State::Preface(0)
    }
}

const NEXT_FRAME: State = State::Header {
    seen: 0,
    bytes: [0; FRAME_HEADER],
};

impl StreamCounter {
    /// Takes the next bytes and tells how many streams they open.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> u64 {
        let mut opened = 0;
        while !bytes.is_empty() {
            match &mut self.state {
                State::Foreign => return opened,
                State::Preface(seen) => {
                    let take = bytes.len().min(PREFACE.len() - *seen);
                    if bytes[..take] != PREFACE[*seen..*seen + take] {
                        self.state = State::Foreign;
                        return opened;
                    }
                    *seen += take;
                    if *seen == PREFACE.len() {
                        self.state = NEXT_FRAME;
                    }
                    bytes = &bytes[take..];
                }
                State::Header {
                    seen,
                    bytes: header,
                } => {
                    let take = bytes.len().min(FRAME_HEADER - *seen);
                    header[*seen..*seen + take].copy_from_slice(&bytes[..take]);
                    *seen += take;
                    if *seen == FRAME_HEADER {
                        opened += u64::from(header[3] == HEADERS);
                        let length =
                            u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
                        self.state = if length == 0 {
                            NEXT_FRAME
                        } else {
                            State::Payload(length)
                        };
                    }
                    bytes = &bytes[take..];
                }
                State::Payload(left) => {
                    let take = bytes.len().min(*left);
                    *left -= take;
                    if *left == 0 {
                        self.state = NEXT_FRAME;
                    }
                    bytes = &bytes[take..];
                }
            }
        }
        opened
    }
}

#[cfg(test)]
mod tests {
    use super::{PREFACE, StreamCounter};

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        bytes.extend(vec![kind; usize::from(length)]);
        bytes
    }

    #[test]
    fn headers_are_counted_however_the_bytes_are_cut() {
        let mut bytes = PREFACE.to_vec();
        for (kind, length) in [(4, 0), (1, 30), (0, 200), (1, 1), (8, 4), (1, 0)] {
            bytes.extend(frame(kind, length));
        }
        for piece in 1..bytes.len() {
            let mut counter = StreamCounter::default();
            let opened: u64 = bytes.chunks(piece).map(|chunk| counter.feed(chunk)).sum();
            assert_eq!(opened, 3, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_not_http2_counts_nothing() {
        let mut counter = StreamCounter::default();
        assert_eq!(counter.feed(b"POST /v3/kv/put HTTP/1.1\r\n\r\n"), 0);
        assert_eq!(counter.feed(&[1; 100]), 0);
    }
}
