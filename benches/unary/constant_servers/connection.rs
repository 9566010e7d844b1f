//! One connection of a constant server.

use std::{
    collections::{HashSet, VecDeque},
    io::{self, Read, Write},
    net::TcpStream,
};

use actix_etcd::proto::{KeyValue, RangeResponse, ResponseHeader, StatusResponse};
use prost::Message;

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// Largest frame that HTTP/2 allows by default.
const LARGEST_FRAME: usize = 16 * 1024;

/// Length of the prefix of a gRPC message.
const GRPC_PREFIX: usize = 5;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Flow-control window for the client: the largest, so that it never limits a bench.
const WINDOW: u32 = 0x7fff_ffff;
const INITIAL_WINDOW: u32 = 65_535;

/// Serves a connection until the client closes it.
pub fn serve(mut socket: TcpStream) {
    let _ = socket.set_nodelay(true);
    let mut connection = Connection::new();
    let mut preface = [0; PREFACE];
    if socket.read_exact(&mut preface).is_ok() {
        let _ = connection.run(&mut socket);
    }
}

struct Connection {
    range: Vec<u8>,
    status: Vec<u8>,
    output: Vec<u8>,
    /// The header fields are in the client's HPACK table, after the first response.
    headers_indexed: bool,
    /// Send window that the client granted.
    send_window: usize,
    /// Streams that wait for a response, and whether it is a status response.
    pending: VecDeque<(u32, bool)>,
    /// Open streams with a non-empty message: some clients end the stream in a separate frame.
    streams_with_message: HashSet<u32>,
    /// Bytes received since the last window update.
    unacknowledged: u32,
}

struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

impl Connection {
    fn new() -> Self {
        let header = Some(ResponseHeader {
            cluster_id: 1,
            member_id: 1,
            revision: 1,
            raft_term: 2,
        });
        let kv = KeyValue {
            key: "bench/0".into(),
            value: vec![b'v'; 64].into(),
            create_revision: 1,
            mod_revision: 1,
            version: 1,
            ..KeyValue::default()
        };
        let range = RangeResponse {
            header,
            kvs: vec![kv],
            count: 1,
            ..RangeResponse::default()
        };
        let status = StatusResponse {
            header,
            version: "3.7.2".to_owned(),
            leader: 1,
            raft_index: 10,
            raft_term: 2,
            ..StatusResponse::default()
        };
        Self {
            range: framed(&range),
            status: framed(&status),
            output: Vec::new(),
            headers_indexed: false,
            send_window: INITIAL_WINDOW as usize,
            pending: VecDeque::new(),
            streams_with_message: HashSet::new(),
            unacknowledged: 0,
        }
    }

    fn run(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        // Allows practically unlimited streams and bytes.
        let mut settings = Vec::new();
        for (name, value) in [(3u16, 1_000_000u32), (4, WINDOW)] {
            settings.extend(name.to_be_bytes());
            settings.extend(value.to_be_bytes());
        }
        self.write_frame(SETTINGS, 0, 0, &settings);
        self.write_frame(
            WINDOW_UPDATE,
            0,
            0,
            &(WINDOW - INITIAL_WINDOW).to_be_bytes(),
        );
        let mut buffer = vec![0; 1 << 20];
        let mut filled = 0;
        loop {
            if !self.output.is_empty() {
                socket.write_all(&self.output)?;
                self.output.clear();
            }
            let read = socket.read(&mut buffer[filled..])?;
            if read == 0 {
                return Ok(());
            }
            filled += read;
            let mut parsed = 0;
            while let Some(frame) = parse_frame(&buffer[parsed..filled])? {
                parsed += FRAME_HEADER + frame.payload.len();
                self.handle_frame(&frame);
            }
            buffer.copy_within(parsed..filled, 0);
            filled -= parsed;
        }
    }

    fn handle_frame(&mut self, frame: &Frame<'_>) {
        match frame.kind {
            DATA => {
                self.unacknowledged += u32::try_from(frame.payload.len()).unwrap_or(0);
                if self.unacknowledged > WINDOW / 2 {
                    let received = std::mem::take(&mut self.unacknowledged);
                    self.write_frame(WINDOW_UPDATE, 0, 0, &received.to_be_bytes());
                }
                let has_message = frame.payload.len() > GRPC_PREFIX;
                if frame.flags & END_STREAM != 0 {
                    let earlier_message = self.streams_with_message.remove(&frame.stream);
                    self.pending
                        .push_back((frame.stream, !has_message && !earlier_message));
                    self.send_responses();
                } else if has_message {
                    self.streams_with_message.insert(frame.stream);
                }
            }
            SETTINGS if frame.flags & ACK == 0 => self.write_frame(SETTINGS, ACK, 0, &[]),
            PING if frame.flags & ACK == 0 => self.write_frame(PING, ACK, 0, frame.payload),
            WINDOW_UPDATE if frame.stream == 0 => {
                let increment = frame.payload.first_chunk().copied().unwrap_or_default();
                self.send_window += u32::from_be_bytes(increment) as usize;
                self.send_responses();
            }
            // Request headers are ignored; the window of a stream is larger than a response.
            _ => {}
        }
    }

    fn send_responses(&mut self) {
        while let Some((stream, status)) = self.pending.front().copied() {
            let body = if status { &self.status } else { &self.range };
            if body.len() > self.send_window {
                return;
            }
            self.send_window -= body.len();
            self.pending.pop_front();
            let body = std::mem::take(if status {
                &mut self.status
            } else {
                &mut self.range
            });
            let (head, trailers) = self.header_blocks();
            self.write_frame(HEADERS, END_HEADERS, stream, &head);
            self.write_frame(DATA, 0, stream, &body);
            self.write_frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
            *(if status {
                &mut self.status
            } else {
                &mut self.range
            }) = body;
        }
    }

    /// Returns the HPACK blocks of the headers (`:status: 200`, `content-type: application/grpc`) and of the trailers
    /// (`grpc-status: 0`).
    fn header_blocks(&mut self) -> (Vec<u8>, Vec<u8>) {
        const OK: u8 = 0x88;
        const INDEXED: u8 = 0x80;
        const ADDED: u8 = 0x40;
        if std::mem::replace(&mut self.headers_indexed, true) {
            return (vec![OK, INDEXED + 63], vec![INDEXED + 62]);
        }
        let mut head = vec![OK, ADDED + 31, 16];
        head.extend(b"application/grpc");
        let mut trailers = vec![ADDED, 11];
        trailers.extend(b"grpc-status\x010");
        (head, trailers)
    }

    fn write_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
        self.output.extend(&length[1..]);
        self.output.extend([kind, flags]);
        self.output.extend(stream.to_be_bytes());
        self.output.extend(payload);
    }
}

fn parse_frame(bytes: &[u8]) -> io::Result<Option<Frame<'_>>> {
    let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
        return Ok(None);
    };
    let [a, b, c, kind, flags, s1, s2, s3, s4] = *header;
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    if length > LARGEST_FRAME {
        return Err(io::Error::other("frame is too large"));
    }
    Ok(rest.get(..length).map(|payload| Frame {
        kind,
        flags,
        stream: u32::from_be_bytes([s1, s2, s3, s4]) & 0x7fff_ffff,
        payload,
    }))
}

fn framed(message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    let mut framed = vec![0];
    framed.extend(u32::try_from(body.len()).unwrap_or(0).to_be_bytes());
    framed.extend(body);
    framed
}
