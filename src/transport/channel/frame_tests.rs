//! Frames that servers and proxies send in practice, and their effect on requests. The server is written by hand:
//! h2's own server sends few of them.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    task::JoinHandle,
    time::timeout,
};

use super::*;
use crate::{
    proto::PutResponse,
    transport::{
        dial::{DialOptions, handshake},
        frame_scanner::{FRAME_HEADER, GOAWAY, HEADERS, frame},
    },
};

const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const UNKNOWN: u8 = 0xee;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

/// Setting of the number of concurrent streams.
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// Setting of the window for request bodies.
const INITIAL_WINDOW_SIZE: u16 = 4;

/// The only stream of most tests: the first of a client.
const STREAM: u32 = 1;

/// The server's side of a connection.
struct RawServer(DuplexStream);

impl RawServer {
    /// Connects a channel to a server with these settings. The channel's driver runs in a task.
    async fn start(settings: &[(u16, u32)]) -> (Channel, Self, JoinHandle<String>) {
        Self::start_with(&dial_options(), settings).await
    }

    async fn start_with(
        options: &DialOptions,
        settings: &[(u16, u32)],
    ) -> (Channel, Self, JoinHandle<String>) {
        let (near, far) = tokio::io::duplex(1 << 22);
        let endpoint = Endpoint::parse("member:2379").unwrap();
        let dialled = handshake(&endpoint, Box::new(near), None, options);
        let dialled = dialled.await.unwrap();
        let driver = tokio::spawn(dialled.driver);
        let mut server = Self(far);
        let mut preface = [0; 24];
        server.0.read_exact(&mut preface).await.unwrap();
        server.send(&settings_frame(settings)).await;
        // The client applies settings when it acknowledges them.
        server.receive(SETTINGS, ACK).await;
        server.send(&frame(SETTINGS, ACK, 0, &[])).await;
        (dialled.channel, server, driver)
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Waits for a frame of this type with these flags.
    async fn receive(&mut self, kind: u8, flags: u8) {
        loop {
            let mut head = [0; FRAME_HEADER];
            self.0.read_exact(&mut head).await.unwrap();
            let [a, b, c, received, with, ..] = head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            self.0.read_exact(&mut vec![0; length]).await.unwrap();
            if received == kind && with & flags == flags {
                return;
            }
        }
    }
}

fn dial_options() -> DialOptions {
    DialOptions {
        connect_timeout: Duration::from_secs(5),
        ..DialOptions::default()
    }
}

fn settings_frame(settings: &[(u16, u32)]) -> Vec<u8> {
    let entries = settings
        .iter()
        .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat());
    frame(SETTINGS, 0, 0, &entries.collect::<Vec<_>>())
}

fn go_away(last_stream: u32) -> Vec<u8> {
    let payload = [last_stream.to_be_bytes(), [0; 4]].concat();
    frame(GOAWAY, 0, 0, &payload)
}

fn reset(reason: h2::Reason) -> Vec<u8> {
    frame(RST_STREAM, 0, STREAM, &u32::from(reason).to_be_bytes())
}

/// Encodes headers without compression. An empty name stands for `:status`.
fn header_block(headers: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        // HPACK integers with a prefix of seven bits.
        let mut bytes = Vec::new();
        let mut rest = text.len();
        if rest < 127 {
            bytes.push(u8::try_from(rest).unwrap());
        } else {
            bytes.push(127);
            rest -= 127;
            while rest >= 128 {
                bytes.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            bytes.push(u8::try_from(rest).unwrap());
        }
        bytes.extend(text.as_bytes());
        bytes
    };
    let mut block = Vec::new();
    for (name, value) in headers {
        if name.is_empty() {
            block.push(8);
        } else {
            block.push(0);
            block.extend(text(name));
        }
        block.extend(text(value));
    }
    block
}

fn headers(flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, STREAM, &header_block(fields))
}

fn grpc_headers() -> Vec<u8> {
    headers(0, &[("", "200"), ("content-type", "application/grpc")])
}

/// An empty message and its prefix.
const EMPTY_MESSAGE: [u8; 5] = [0; 5];

fn message() -> Vec<u8> {
    frame(DATA, 0, STREAM, &EMPTY_MESSAGE)
}

fn ok_trailers() -> Vec<u8> {
    headers(END_STREAM, &[("grpc-status", "0")])
}

/// Returns a payload with padding.
fn padded(payload: &[u8]) -> Vec<u8> {
    [&[100], payload, &[0; 100]].concat()
}

async fn put(channel: Channel) -> Result<PutResponse, RpcFailure> {
    let _slot = channel.slot(StreamUse::Probe).await;
    let tracker = RequestTracker::default();
    let body = Bytes::from_static(&[0; 5]);
    let path = "/etcdserverpb.KV/Put";
    channel
        .unary(path, &Metadata::default(), body, &tracker)
        .await
}

/// Sends a request to a server that responds with these bytes, and returns the error.
async fn failure_of(response: &[u8]) -> Option<Error> {
    let (channel, mut server, _driver) = RawServer::start(&[]).await;
    let request = tokio::spawn(put(channel));
    server.receive(DATA, END_STREAM).await;
    server.send(response).await;
    let limit = Duration::from_secs(20);
    let result = timeout(limit, request).await.expect("no result").unwrap();
    result.err().map(|failure| failure.error)
}

#[tokio::test]
async fn unusual_valid_responses_are_accepted() {
    let large = "x".repeat(60_000);
    let block = header_block(&[
        ("", "200"),
        ("content-type", "application/grpc"),
        ("x-large", &large),
    ]);
    let mut continued = frame(HEADERS, 0, STREAM, &block[..10_000]);
    for part in block[10_000..].chunks(10_000) {
        continued.extend(frame(CONTINUATION, 0, STREAM, part));
    }
    continued.extend(frame(CONTINUATION, END_HEADERS, STREAM, &[]));
    let informational = [
        headers(0, &[("", "103"), ("link", "</x>")]),
        headers(0, &[("", "100")]),
    ];
    let padded_head = frame(
        HEADERS,
        END_HEADERS | PADDED,
        STREAM,
        &padded(&header_block(&[
            ("", "200"),
            ("content-type", "application/grpc+proto"),
        ])),
    );
    let padded_data = frame(DATA, PADDED, STREAM, &padded(&EMPTY_MESSAGE));
    let unknown = [
        frame(UNKNOWN, 0xff, 0, &[1; 100]),
        frame(UNKNOWN, 0xff, STREAM, &[1; 100]),
        frame(UNKNOWN, 0xff, 2, &[]),
    ];
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(10_000);
    for (name, response) in [
        ("plain", vec![grpc_headers(), message(), ok_trailers()]),
        (
            "header list of 60 kB",
            vec![continued, message(), ok_trailers()],
        ),
        (
            "1xx",
            [
                &informational[..],
                &[grpc_headers(), message(), ok_trailers()],
            ]
            .concat(),
        ),
        ("padding", vec![padded_head, padded_data, ok_trailers()]),
        (
            "unknown frames",
            [
                &unknown[..],
                &[grpc_headers()],
                &unknown,
                &[message(), ok_trailers()],
            ]
            .concat(),
        ),
        (
            "many pings",
            vec![
                pings.clone(),
                grpc_headers(),
                pings,
                message(),
                ok_trailers(),
            ],
        ),
        (
            "empty data",
            vec![
                grpc_headers(),
                frame(DATA, 0, STREAM, &[]).repeat(50),
                message(),
                ok_trailers(),
            ],
        ),
        (
            "one byte per frame",
            vec![
                grpc_headers(),
                frame(DATA, 0, STREAM, &[0]).repeat(5),
                ok_trailers(),
            ],
        ),
    ] {
        let failure = failure_of(&response.concat()).await;
        assert!(failure.is_none(), "{name}: {failure:?}");
    }
}

/// Checks the kind and the text of the error of each response. The outcome is unknown.
async fn check_failures(responses: impl IntoIterator<Item = (Vec<u8>, ErrorKind, &str)>) {
    for (response, kind, reason) in responses {
        let error = failure_of(&response).await.expect(reason);
        let found = (error.kind(), error.outcome());
        assert_eq!(found, (kind, Outcome::Unknown), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn http_errors_fail_clearly() {
    let (unavailable, protocol) = (ErrorKind::ServerUnavailable, ErrorKind::Protocol);
    let html = |status| {
        let head = headers(0, &[("", status), ("content-type", "text/html")]);
        [head, frame(DATA, END_STREAM, STREAM, b"<html>error</html>")].concat()
    };
    let only_status = |status| headers(END_STREAM, &[("", status)]);
    check_failures([
        (
            only_status("429"),
            unavailable,
            "HTTP 429 Too Many Requests",
        ),
        (only_status("502"), unavailable, "HTTP 502 Bad Gateway"),
        (
            only_status("503"),
            unavailable,
            "HTTP 503 Service Unavailable",
        ),
        (only_status("504"), unavailable, "HTTP 504 Gateway Timeout"),
        (html("503"), unavailable, "HTTP 503 Service Unavailable"),
        (only_status("400"), protocol, "HTTP 400 Bad Request"),
        (only_status("401"), protocol, "HTTP 401 Unauthorized"),
        (only_status("403"), protocol, "HTTP 403 Forbidden"),
        (html("404"), protocol, "HTTP 404 Not Found"),
        (
            only_status("500"),
            protocol,
            "HTTP 500 Internal Server Error",
        ),
        (html("200"), protocol, "the response is text/html, not gRPC"),
        (only_status("200"), protocol, "the response is not gRPC"),
    ])
    .await;
}

#[tokio::test]
async fn incomplete_responses_fail_clearly() {
    let other_trailers = headers(END_STREAM, &[("x", "y")]);
    let last_message = frame(DATA, END_STREAM, STREAM, &EMPTY_MESSAGE);
    let missing_body = headers(END_STREAM, &[("", "200"), ("content-length", "7")]);
    let from_proxy = headers(
        END_STREAM,
        &[
            ("", "200"),
            ("grpc-status", "14"),
            ("grpc-message", "no healthy upstream"),
        ],
    );
    let protocol = ErrorKind::Protocol;
    check_failures([
        (
            [grpc_headers(), message(), other_trailers].concat(),
            protocol,
            "no gRPC status",
        ),
        (
            [grpc_headers(), last_message].concat(),
            protocol,
            "no gRPC status",
        ),
        (
            [grpc_headers(), ok_trailers()].concat(),
            protocol,
            "no message",
        ),
        (missing_body, protocol, "not valid HTTP/2"),
        (
            from_proxy,
            ErrorKind::ServerUnavailable,
            "no healthy upstream",
        ),
    ])
    .await;
}

#[tokio::test]
async fn refused_requests_were_not_sent() {
    // A window of zero keeps the body in the client, a limit of zero the whole request.
    let waiting_for_response = (vec![], true);
    let body_blocked = (vec![(INITIAL_WINDOW_SIZE, 0)], false);
    for (settings, body_arrives) in [waiting_for_response, body_blocked] {
        for refusal in [
            go_away(0),
            reset(h2::Reason::REFUSED_STREAM),
            // The first GOAWAY of a graceful shutdown allows all streams.
            [go_away(0x7fff_ffff), go_away(0)].concat(),
        ] {
            let (channel, mut server, _driver) = RawServer::start(&settings).await;
            let request = tokio::spawn(put(channel));
            if body_arrives {
                server.receive(DATA, END_STREAM).await;
            } else {
                server.receive(HEADERS, 0).await;
            }
            server.send(&refusal).await;
            let error = request.await.unwrap().unwrap_err().error;
            assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
        }
    }
}

#[tokio::test]
async fn request_queued_in_h2_was_not_sent() {
    let (channel, mut server, _driver) = RawServer::start(&[(MAX_CONCURRENT_STREAMS, 0)]).await;
    // Without a slot, as if the limit had changed a moment ago.
    let request = tokio::spawn(async move {
        let (metadata, tracker) = (Metadata::default(), RequestTracker::default());
        let response = channel.unary::<PutResponse>("/path", &metadata, Bytes::new(), &tracker);
        response.await
    });
    server.send(&go_away(0)).await;
    let error = request.await.unwrap().unwrap_err().error;
    assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
}

#[tokio::test]
async fn goaway_before_the_body_means_not_sent() {
    let (channel, mut server, _driver) = RawServer::start(&[]).await;
    let (response, mut body) = channel.start("/path", &Metadata::default()).unwrap();
    server.receive(HEADERS, 0).await;
    server.send(&go_away(0)).await;
    // Responses to pings follow in order: h2 has handled the GOAWAY.
    server.send(&frame(PING, 0, 0, &[7; 8])).await;
    server.receive(PING, ACK).await;
    let (tracker, stream_id) = (RequestTracker::default(), body.stream_id().as_u32());
    tracker.handed_to_h2(stream_id);
    let _ = body.send_data(Bytes::from_static(&[0; 5]), true);
    let result = channel.receive::<PutResponse>(response, stream_id, &tracker);
    let result = result.await;
    let error = result.unwrap_err().error;
    assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
    assert!(!channel.accepts_requests());
}

#[tokio::test]
async fn processed_requests_are_unknown_after_goaway() {
    let too_late = [grpc_headers(), go_away(0)].concat();
    for (name, response) in [
        ("stream is covered", go_away(STREAM)),
        ("response has started", too_late),
    ] {
        let (channel, mut server, driver) = RawServer::start(&[]).await;
        let request = tokio::spawn(put(channel));
        server.receive(DATA, END_STREAM).await;
        server.send(&response).await;
        drop(server);
        let error = request.await.unwrap().unwrap_err().error;
        assert_eq!(error.outcome(), Outcome::Unknown, "{name}: {error}");
        driver.await.unwrap();
    }
}

#[tokio::test]
async fn early_response_is_read_before_body_is_sent() {
    let (channel, mut server, _driver) = RawServer::start(&[(INITIAL_WINDOW_SIZE, 0)]).await;
    let request = tokio::spawn(put(channel));
    server.receive(HEADERS, 0).await;
    let refused = headers(
        END_STREAM,
        &[
            ("", "200"),
            ("grpc-status", "7"),
            ("grpc-message", "denied"),
        ],
    );
    let response = [refused, reset(h2::Reason::NO_ERROR)].concat();
    server.send(&response).await;
    let error = request.await.unwrap().unwrap_err().error;
    assert_eq!(error.server_message(), Some("denied"), "{error}");
}

#[tokio::test]
async fn stream_limit_follows_settings() {
    let (channel, mut server, _driver) = RawServer::start(&[(MAX_CONCURRENT_STREAMS, 1)]).await;
    let limit_is = async |limit| {
        while channel.stream_limit() != limit {
            tokio::task::yield_now().await;
        }
    };
    limit_is(Some(1)).await;
    let first = channel.try_slot(StreamUse::Call).unwrap();
    assert!(channel.try_slot(StreamUse::Call).is_none());
    let waiting = channel.slot(StreamUse::Call);
    server
        .send(&settings_frame(&[(MAX_CONCURRENT_STREAMS, 4)]))
        .await;
    let second = waiting.await;
    server
        .send(&settings_frame(&[(MAX_CONCURRENT_STREAMS, 1)]))
        .await;
    limit_is(Some(1)).await;
    drop(first);
    assert!(!channel.has_free_slot(StreamUse::Call), "one is open");
    drop(second);
    assert!(channel.has_free_slot(StreamUse::Call));
}

#[tokio::test(start_paused = true)]
async fn too_many_pings_double_the_interval() {
    let options = dial_options();
    let error_code = u32::from(h2::Reason::ENHANCE_YOUR_CALM).to_be_bytes();
    for interval in [10, 20, 40] {
        let (channel, mut server, _driver) = RawServer::start_with(&options, &[]).await;
        // Pings are sent only while streams are open.
        let _slot = channel.slot(StreamUse::Call).await;
        let connected = tokio::time::Instant::now();
        server.receive(PING, 0).await;
        assert_eq!(connected.elapsed().as_secs(), interval);
        let go_away = [&[0; 4], &error_code[..], b"too_many_pings"].concat();
        server.send(&frame(GOAWAY, 0, 0, &go_away)).await;
        while channel.accepts_requests() {
            tokio::task::yield_now().await;
        }
    }
}
