//! A server that sends large ranges faster than any client reads them: HTTP/2 frames written by hand, two threads per
//! connection, several frames per write, no copy of the response.
//!
//! It does not decode headers. An empty request gets a `Status` response, a request for the key `large` the large
//! response, any other one a response with a single key. Streams take turns, one frame each, as in etcd.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, IoSlice, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use actix_etcd::proto::{KeyValue, RangeResponse, ResponseHeader, StatusResponse};
use prost::Message;
use testbed::{ChildProgram, exit_at_end_of_stdin};

/// Environment variable that makes the program run as the server: number of keys and size of a value.
const CHILD: &str = "BENCH_LARGE_ANSWERS_SERVER";
/// Largest frame that etcd sends.
const FRAME: usize = 16 << 10;
const FRAMES_PER_WRITE: usize = 32;
const FRAME_HEADER: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

/// `:status: 200` and `content-type: application/grpc`, without use of the HPACK table.
const HEAD: &[u8] = b"\x88\x0f\x10\x10application/grpc";
/// `grpc-status: 0`.
const TRAILERS: &[u8] = b"\x00\x0bgrpc-status\x010";

/// The process of the server, which is killed when this value is dropped.
pub struct LargeAnswersServer {
    _child: ChildProgram,
    pub endpoint: String,
}

impl LargeAnswersServer {
    /// Runs the server if this process was started for that, and does not return in that case.
    pub fn run_if_child() {
        let Ok(task) = std::env::var(CHILD) else {
            return;
        };
        exit_at_end_of_stdin();
        let (keys, value) = task.split_once(' ').expect("two numbers");
        let responses: &'static Responses = Box::leak(Box::new(Responses::new(
            keys.parse().expect("number of keys"),
            value.parse().expect("size of a value"),
        )));
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind a loopback port");
        println!(
            "http://{}",
            listener.local_addr().expect("address of the listener")
        );
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || serve(&socket, responses));
        }
    }

    /// Runs this program again as the server. `main` must have called [`LargeAnswersServer::run_if_child`].
    pub fn start(keys: usize, value_size: usize) -> Self {
        let mut child = ChildProgram::start(CHILD, &format!("{keys} {value_size}"));
        let endpoint = child.next_line();
        Self {
            _child: child,
            endpoint,
        }
    }
}

struct Responses {
    status: Vec<u8>,
    small: Vec<u8>,
    large: Vec<u8>,
}

impl Responses {
    fn new(keys: usize, value_size: usize) -> Self {
        let header = Some(ResponseHeader {
            cluster_id: 1,
            member_id: 1,
            revision: 1_000_000,
            raft_term: 2,
        });
        let range = |keys: usize| RangeResponse {
            header,
            kvs: (0..keys)
                .map(|number| key_value(number, value_size))
                .collect(),
            count: i64::try_from(keys).unwrap_or(0),
            more: false,
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
            status: framed(&status),
            small: framed(&range(1)),
            large: framed(&range(keys)),
        }
    }

    fn to(&'static self, request: &[u8]) -> &'static [u8] {
        match request {
            [] => &self.status,
            request if request.windows(5).any(|part| part == b"large") => &self.large,
            _ => &self.small,
        }
    }
}

fn key_value(number: usize, value_size: usize) -> KeyValue {
    KeyValue {
        key: format!("large/{number:08}").into(),
        value: vec![b'v'; value_size].into(),
        create_revision: 500_000,
        mod_revision: 900_000,
        version: 3,
        lease: 0,
    }
}

fn framed(message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    let length = u32::try_from(body.len()).unwrap_or(0).to_be_bytes();
    [&[0][..], &length, &body].concat()
}

/// State of a connection, shared by its reader and its writer.
#[derive(Default)]
struct Connection {
    /// Control frames to write before the responses.
    control: Vec<u8>,
    responses: VecDeque<Response>,
    /// Windows of streams: the client's updates minus the sent bytes.
    windows: HashMap<u32, i64>,
    initial_window: i64,
    window: i64,
    closed: bool,
}

struct Response {
    stream: u32,
    body: &'static [u8],
    has_head: bool,
}

type Shared = Arc<(Mutex<Connection>, Condvar)>;

fn lock(shared: &Shared) -> MutexGuard<'_, Connection> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(socket: &TcpStream, responses: &'static Responses) {
    let _ = socket.set_nodelay(true);
    let shared: Shared = Arc::default();
    {
        let mut connection = lock(&shared);
        (connection.window, connection.initial_window) = (65_535, 65_535);
        // Practically unlimited streams.
        let settings = frame_header(6, SETTINGS, 0, 0);
        connection.control.extend(settings);
        connection.control.extend([0, 3, 0, 15, 66, 64]);
    }
    if let Ok(writer) = socket.try_clone() {
        let shared = shared.clone();
        std::thread::spawn(move || write_all(writer, &shared));
    }
    let _ = read_all(socket, &shared, responses);
    lock(&shared).closed = true;
    shared.1.notify_all();
}

fn read_all(
    mut socket: &TcpStream,
    shared: &Shared,
    responses: &'static Responses,
) -> io::Result<()> {
    socket.read_exact(&mut [0; 24])?;
    let mut reader = io::BufReader::new(socket);
    let mut requests: HashMap<u32, Vec<u8>> = HashMap::new();
    loop {
        let mut header = [0; FRAME_HEADER];
        reader.read_exact(&mut header)?;
        let [a, b, c, kind, flags, s1, s2, s3, s4] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        reader.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes([s1, s2, s3, s4]);
        let number = payload.first_chunk().copied().map_or(0, u32::from_be_bytes);
        let mut connection = lock(shared);
        match kind {
            DATA => {
                let request = requests.entry(stream).or_default();
                request.extend(payload);
                if flags & 1 != 0 {
                    let request = requests.remove(&stream).unwrap_or_default();
                    let body = responses.to(request.get(5..).unwrap_or_default());
                    let initial = connection.initial_window;
                    *connection.windows.entry(stream).or_default() += initial;
                    connection.responses.push_back(Response {
                        stream,
                        body,
                        has_head: false,
                    });
                }
            }
            SETTINGS if flags & 1 == 0 => {
                for setting in payload.chunks_exact(6).filter(|setting| setting[1] == 4) {
                    let window = setting[2..]
                        .first_chunk()
                        .copied()
                        .map_or(0, u32::from_be_bytes);
                    connection.initial_window = i64::from(window);
                }
                connection.control.extend(frame_header(0, SETTINGS, 1, 0));
            }
            PING if flags & 1 == 0 => {
                connection.control.extend(frame_header(8, PING, 1, 0));
                connection.control.extend(payload);
            }
            WINDOW_UPDATE if stream == 0 => connection.window += i64::from(number),
            WINDOW_UPDATE => *connection.windows.entry(stream).or_default() += i64::from(number),
            RESET => connection
                .responses
                .retain(|response| response.stream != stream),
            _ => continue,
        }
        drop(connection);
        shared.1.notify_all();
    }
}

fn write_all(mut socket: TcpStream, shared: &Shared) {
    loop {
        let mut connection = lock(shared);
        let mut parts: Vec<(Vec<u8>, &'static [u8])> = Vec::new();
        loop {
            if connection.closed {
                return;
            }
            let control = std::mem::take(&mut connection.control);
            if !control.is_empty() {
                parts.push((control, &[]));
            }
            connection.take_frames(&mut parts);
            if !parts.is_empty() {
                break;
            }
            connection = shared
                .1
                .wait(connection)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(connection);
        let slices = parts
            .iter()
            .flat_map(|(head, body)| [IoSlice::new(head), IoSlice::new(body)]);
        let mut slices: Vec<IoSlice<'_>> = slices.collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match socket.write_vectored(rest) {
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(_) => return,
            }
        }
    }
}

impl Connection {
    /// Takes the next frames that the windows allow, one per stream in turn.
    fn take_frames(&mut self, parts: &mut Vec<(Vec<u8>, &'static [u8])>) {
        let mut blocked = 0;
        while parts.len() < FRAMES_PER_WRITE && blocked < self.responses.len() {
            let Some(mut response) = self.responses.pop_front() else {
                return;
            };
            let stream_window = self.windows.entry(response.stream).or_default();
            let allowed = self.window.min(*stream_window);
            let length = response.body.len().min(FRAME);
            let cost = i64::try_from(length).unwrap_or(0);
            if cost > allowed {
                blocked += 1;
                self.responses.push_back(response);
                continue;
            }
            blocked = 0;
            *stream_window -= cost;
            self.window -= cost;
            let (frame, rest) = response.body.split_at(length);
            let mut head = Vec::new();
            if !std::mem::replace(&mut response.has_head, true) {
                head.extend(frame_header(HEAD.len(), HEADERS, 4, response.stream));
                head.extend(HEAD);
            }
            head.extend(frame_header(length, DATA, 0, response.stream));
            parts.push((head, frame));
            if rest.is_empty() {
                let mut end = frame_header(TRAILERS.len(), HEADERS, 5, response.stream).to_vec();
                end.extend(TRAILERS);
                parts.push((end, &[]));
                self.windows.remove(&response.stream);
            } else {
                response.body = rest;
                self.responses.push_back(response);
            }
        }
    }
}

fn frame_header(length: usize, kind: u8, flags: u8, stream: u32) -> [u8; FRAME_HEADER] {
    let [_, a, b, c] = u32::try_from(length).unwrap_or(0).to_be_bytes();
    let [s1, s2, s3, s4] = stream.to_be_bytes();
    [a, b, c, kind, flags, s1, s2, s3, s4]
}
