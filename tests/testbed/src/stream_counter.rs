//! Counts the HTTP/2 streams that a client opens, from the frame headers of a plain-text connection.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;

/// Parses the bytes from the client to the server, in pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct StreamCounter {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Number of preface bytes received.
    Preface(usize),
    /// Header of the next frame, partly received.
    Header {
        received: usize,
        bytes: [u8; FRAME_HEADER],
    },
    /// Number of payload bytes of the frame not received yet.
    Payload(usize),
    /// TLS, HTTP/1 or another protocol; not counted.
    NotHttp2,
}

impl Default for State {
    fn default() -> Self {
        State::Preface(0)
    }
}

const NEXT_FRAME: State = State::Header {
    received: 0,
    bytes: [0; FRAME_HEADER],
};

impl StreamCounter {
    /// Parses the next bytes and returns the number of streams they open.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> u64 {
        let mut opened = 0;
        while !bytes.is_empty() {
            match &mut self.state {
                State::NotHttp2 => return opened,
                State::Preface(received) => {
                    let take = bytes.len().min(PREFACE.len() - *received);
                    if bytes[..take] != PREFACE[*received..*received + take] {
                        self.state = State::NotHttp2;
                        return opened;
                    }
                    *received += take;
                    if *received == PREFACE.len() {
                        self.state = NEXT_FRAME;
                    }
                    bytes = &bytes[take..];
                }
                State::Header {
                    received,
                    bytes: header,
                } => {
                    let take = bytes.len().min(FRAME_HEADER - *received);
                    header[*received..*received + take].copy_from_slice(&bytes[..take]);
                    *received += take;
                    if *received == FRAME_HEADER {
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
                State::Payload(remaining) => {
                    let take = bytes.len().min(*remaining);
                    *remaining -= take;
                    if *remaining == 0 {
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
    fn streams_are_counted_in_any_chunking() {
        let mut bytes = PREFACE.to_vec();
        for (kind, length) in [(4, 0), (1, 30), (0, 200), (1, 1), (8, 4), (1, 0)] {
            bytes.extend(frame(kind, length));
        }
        for size in 1..bytes.len() {
            let mut counter = StreamCounter::default();
            let opened: u64 = bytes.chunks(size).map(|chunk| counter.feed(chunk)).sum();
            assert_eq!(opened, 3, "chunks of {size} bytes");
        }
    }

    #[test]
    fn http1_opens_no_streams() {
        let mut counter = StreamCounter::default();
        assert_eq!(counter.feed(b"POST /v3/kv/put HTTP/1.1\r\n\r\n"), 0);
        assert_eq!(counter.feed(&[1; 100]), 0);
    }
}
