//! One connection of the wire server.

use std::{
    collections::{HashSet, VecDeque},
    io::{self, Read, Write},
    net::TcpStream,
};

use actix_etcd::proto::{KeyValue, RangeResponse, ResponseHeader, StatusResponse};
use prost::Message;

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// The length a client may announce for a frame unless it was told otherwise.
const LARGEST_FRAME: usize = 16 * 1024;

/// What goes before a message without content.
const GRPC_PREFIX: usize = 5;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// What the client may send before it hears of it: nothing it does in a bench uses it up unnoticed.
const WINDOW: u32 = 0x7fff_ffff;
const INITIAL_WINDOW: u32 = 65_535;

/// A connection that breaks is a client that has gone.
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
    out: Vec<u8>,
    /// The answer's header fields are in the client's table from the first answer on.
    indexed: bool,
    /// How much the client lets us send, and what waits for more.
    credit: usize,
    waiting: VecDeque<(u32, bool)>,
    /// Streams that have said something and not yet ended: some clients end with a frame of its own.
    asked: HashSet<u32>,
    /// What the client has sent since it was last told to go on.
    taken: u32,
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
            out: Vec::new(),
            indexed: false,
            credit: INITIAL_WINDOW as usize,
            waiting: VecDeque::new(),
            asked: HashSet::new(),
            taken: 0,
        }
    }

    fn run(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        // Streams without limit, and no flow control worth the name.
        let mut settings = Vec::new();
        for (name, value) in [(3u16, 1_000_000u32), (4, WINDOW)] {
            settings.extend(name.to_be_bytes());
            settings.extend(value.to_be_bytes());
        }
        self.frame(SETTINGS, 0, 0, &settings);
        self.frame(
            WINDOW_UPDATE,
            0,
            0,
            &(WINDOW - INITIAL_WINDOW).to_be_bytes(),
        );
        let mut buffer = vec![0; 1 << 20];
        let mut filled = 0;
        loop {
            if !self.out.is_empty() {
                socket.write_all(&self.out)?;
                self.out.clear();
            }
            let read = socket.read(&mut buffer[filled..])?;
            if read == 0 {
                return Ok(());
            }
            filled += read;
            let mut used = 0;
            while let Some(frame) = next_frame(&buffer[used..filled])? {
                used += FRAME_HEADER + frame.payload.len();
                self.take(&frame);
            }
            buffer.copy_within(used..filled, 0);
            filled -= used;
        }
    }

    fn take(&mut self, frame: &Frame<'_>) {
        match frame.kind {
            DATA => {
                self.taken += u32::try_from(frame.payload.len()).unwrap_or(0);
                if self.taken > WINDOW / 2 {
                    let taken = std::mem::take(&mut self.taken);
                    self.frame(WINDOW_UPDATE, 0, 0, &taken.to_be_bytes());
                }
                let says = frame.payload.len() > GRPC_PREFIX;
                if frame.flags & END_STREAM != 0 {
                    let said = self.asked.remove(&frame.stream);
                    self.waiting.push_back((frame.stream, !says && !said));
                    self.answer();
                } else if says {
                    self.asked.insert(frame.stream);
                }
            }
            SETTINGS if frame.flags & ACK == 0 => self.frame(SETTINGS, ACK, 0, &[]),
            PING if frame.flags & ACK == 0 => self.frame(PING, ACK, 0, frame.payload),
            WINDOW_UPDATE if frame.stream == 0 => {
                let more = frame.payload.first_chunk().copied().unwrap_or_default();
                self.credit += u32::from_be_bytes(more) as usize;
                self.answer();
            }
            // What is asked is not looked at; a stream's own window is larger than an answer.
            _ => {}
        }
    }

    fn answer(&mut self) {
        while let Some((stream, status)) = self.waiting.front().copied() {
            let body = if status { &self.status } else { &self.range };
            if body.len() > self.credit {
                return;
            }
            self.credit -= body.len();
            self.waiting.pop_front();
            let body = std::mem::take(if status {
                &mut self.status
            } else {
                &mut self.range
            });
            let (head, trailers) = self.header_blocks();
            self.frame(HEADERS, END_HEADERS, stream, &head);
            self.frame(DATA, 0, stream, &body);
            self.frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
            *(if status {
                &mut self.status
            } else {
                &mut self.range
            }) = body;
        }
    }

    /// `:status: 200, content-type: application/grpc`, then `grpc-status: 0`, as HPACK wants them.
    fn header_blocks(&mut self) -> (Vec<u8>, Vec<u8>) {
        const OK: u8 = 0x88;
        const INDEXED: u8 = 0x80;
        const ADDED: u8 = 0x40;
        if std::mem::replace(&mut self.indexed, true) {
            return (vec![OK, INDEXED + 63], vec![INDEXED + 62]);
        }
        let mut head = vec![OK, ADDED + 31, 16];
        head.extend(b"application/grpc");
        let mut trailers = vec![ADDED, 11];
        trailers.extend(b"grpc-status\x010");
        (head, trailers)
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
        self.out.extend(&length[1..]);
        self.out.extend([kind, flags]);
        self.out.extend(stream.to_be_bytes());
        self.out.extend(payload);
    }
}

fn next_frame(bytes: &[u8]) -> io::Result<Option<Frame<'_>>> {
    let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
        return Ok(None);
    };
    let [a, b, c, kind, flags, s1, s2, s3, s4] = *header;
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    if length > LARGEST_FRAME {
        return Err(io::Error::other("a frame is larger than allowed"));
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
