//! The scripted server, tested with a plain HTTP/2 client.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderMap, Request};
use prost::Message;
use testbed::{GoAway, Greeting, Reply, STATUS, ScriptedServer, StatusResponse, framed};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const PUT: &str = "/etcdserverpb.KV/Put";
const TIMEOUT: Duration = Duration::from_secs(5);

async fn client(
    server: &ScriptedServer,
) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let socket = TcpStream::connect(server.address()).await.unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    (client.ready().await.unwrap(), tokio::spawn(connection))
}

fn open(client: &mut SendRequest<Bytes>, path: &str) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::post(format!("http://127.0.0.1{path}"))
        .header("k", "v")
        .body(())
        .unwrap();
    client.send_request(request, false).unwrap()
}

fn call(client: &mut SendRequest<Bytes>, path: &str) -> ResponseFuture {
    let (response, mut body) = open(client, path);
    body.send_data(framed(b"request"), true).unwrap();
    response
}

async fn read_response(response: ResponseFuture) -> Result<(Bytes, HeaderMap), h2::Error> {
    let (head, mut body) = timeout(TIMEOUT, response)
        .await
        .expect("a response in time")?
        .into_parts();
    let mut data = Vec::new();
    while let Some(piece) = timeout(TIMEOUT, body.data()).await.expect("data in time") {
        data.extend(piece?);
    }
    let end = body.trailers().await?.unwrap_or(head.headers);
    Ok((data.into(), end))
}

#[tokio::test]
async fn status_is_healthy_and_unknown_paths_are_unimplemented() {
    let server = ScriptedServer::start().await;
    let (mut client, _driver) = client(&server).await;
    let (body, end) = read_response(call(&mut client, STATUS)).await.unwrap();
    assert_eq!(end["grpc-status"], "0");
    assert_eq!(
        StatusResponse::decode(body.slice(5..)).unwrap(),
        StatusResponse::healthy()
    );
    let (_, end) = read_response(call(&mut client, PUT)).await.unwrap();
    assert_eq!(end["grpc-status"], "12");
    assert_eq!(
        (server.connections(), server.accepted(), server.count(PUT)),
        (1, 1, 1)
    );
}

#[tokio::test]
async fn script_chooses_reply_per_call() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |call| match call.nth {
        0 => Reply::status(14, "no leader: 100 %").with_trailer("grpc-retry-pushback-ms", "20"),
        _ => Reply::bytes("response").after(Duration::from_millis(50)),
    });
    let (mut client, _driver) = client(&server).await;
    let (body, end) = read_response(call(&mut client, PUT)).await.unwrap();
    assert!(body.is_empty());
    assert_eq!(
        (&end["grpc-status"], &end["grpc-message"]),
        (
            &"14".parse().unwrap(),
            &"no leader: 100 %25".parse().unwrap()
        )
    );
    assert_eq!(end["grpc-retry-pushback-ms"], "20");
    let started = Instant::now();
    let (body, _) = read_response(call(&mut client, PUT)).await.unwrap();
    assert_eq!(body, framed(b"response"));
    assert!(started.elapsed() >= Duration::from_millis(50));
    let recorded = &server.calls(PUT)[1];
    assert_eq!(
        (
            &recorded.body[..],
            recorded.nth,
            recorded.connection,
            recorded.stream_id
        ),
        (&b"request"[..], 1, 0, 3)
    );
    assert_eq!(recorded.metadata["k"], "v");
}

#[tokio::test]
async fn streams_are_refused_reset_and_cancelled() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |call| match call.nth {
        0 => Reply::refuse_stream(),
        1 => Reply::headers_then_reset(Reason::INTERNAL_ERROR),
        _ => Reply::hang(),
    });
    let (mut client, _driver) = client(&server).await;
    let refused = read_response(call(&mut client, PUT)).await.unwrap_err();
    assert!(
        refused.is_remote() && refused.reason() == Some(Reason::REFUSED_STREAM),
        "{refused:?}"
    );
    let mut body = timeout(TIMEOUT, call(&mut client, PUT))
        .await
        .unwrap()
        .unwrap()
        .into_body();
    let reset = body.data().await.unwrap().unwrap_err();
    assert_eq!(reset.reason(), Some(Reason::INTERNAL_ERROR));
    let hung = timeout(Duration::from_millis(100), call(&mut client, PUT)).await;
    assert!(hung.is_err());
    let started = Instant::now();
    while server.cancelled() == 0 {
        assert!(
            started.elapsed() < TIMEOUT,
            "the server did not see the cancelled call"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn goaway_excludes_later_calls_and_completes_earlier() {
    let server = ScriptedServer::start().await;
    server.on(STATUS, |_| {
        Reply::bytes("late").after(Duration::from_millis(200))
    });
    server.on(PUT, |_| Reply::go_away(GoAway::ExcludeThis));
    let (mut client, _driver) = client(&server).await;
    let below = call(&mut client, STATUS);
    let above = call(&mut client, PUT);
    let excluded = read_response(above).await.unwrap_err();
    assert!(
        excluded.is_go_away() && excluded.is_remote(),
        "{excluded:?}"
    );
    assert_eq!(read_response(below).await.unwrap().0, framed(b"late"));

    let (mut other, _driver) = self::client(&server).await;
    server.on(PUT, |_| {
        Reply::bytes("last").after_go_away(GoAway::IncludeThis)
    });
    assert_eq!(
        read_response(call(&mut other, PUT)).await.unwrap().0,
        framed(b"last")
    );
}

#[tokio::test]
async fn connections_are_closed_and_reset() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |call| {
        if call.nth == 0 {
            Reply::close_connection()
        } else {
            Reply::reset_connection()
        }
    });
    for reset in [false, true] {
        let (mut client, driver) = client(&server).await;
        let failed = read_response(call(&mut client, PUT)).await.unwrap_err();
        assert!(failed.is_io(), "{failed:?}");
        let end = timeout(TIMEOUT, driver).await.unwrap().unwrap();
        let kind = end
            .err()
            .and_then(|error| error.get_io().map(std::io::Error::kind));
        assert_eq!(
            kind == Some(std::io::ErrorKind::ConnectionReset),
            reset,
            "{kind:?}"
        );
    }
}

#[tokio::test]
async fn stream_is_bidirectional_and_can_break_mid_message() {
    let server = ScriptedServer::start().await;
    server.on("/stream", |call| {
        Reply::streaming(async move |mut sender, mut receiver| {
            while let Some(message) = receiver.recv().await {
                sender.send_bytes(message).await.unwrap();
            }
            if call.nth > 0 {
                sender
                    .send_raw(framed(b"half a message").slice(..9))
                    .await
                    .unwrap();
                sender.status(13, "broken");
            }
        })
    });
    let (mut client, _driver) = client(&server).await;
    for (expected, status) in [(34, "0"), (43, "13")] {
        let (response, mut body) = open(&mut client, "/stream");
        body.send_data(framed(b"first"), false).unwrap();
        let mut response_body = timeout(TIMEOUT, response)
            .await
            .unwrap()
            .unwrap()
            .into_body();
        assert_eq!(
            response_body.data().await.unwrap().unwrap(),
            framed(b"first")
        );
        body.send_data(framed(b"and one more message...."), true)
            .unwrap();
        let mut received = 10 - 5;
        while let Some(piece) = timeout(TIMEOUT, response_body.data()).await.unwrap() {
            received += piece.unwrap().len();
        }
        assert_eq!(received, expected);
        assert_eq!(
            response_body.trailers().await.unwrap().unwrap()["grpc-status"],
            status
        );
    }
}

#[tokio::test]
async fn script_can_reply_before_any_message() {
    let server = ScriptedServer::start().await;
    server.on_headers(PUT, |_| Reply::status(8, "too many"));
    let (mut client, _driver) = client(&server).await;
    let (response, _unsent) = open(&mut client, PUT);
    assert_eq!(read_response(response).await.unwrap().1["grpc-status"], "8");
}

#[tokio::test]
async fn greeting_can_be_other_than_http2() {
    let server = ScriptedServer::start().await;
    server.set_greeting(Greeting::Garbage("SSH-2.0\r\n".into()));
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let mut greeting = [0; 9];
    timeout(TIMEOUT, socket.read_exact(&mut greeting))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&greeting, b"SSH-2.0\r\n");
}

#[tokio::test]
async fn concurrent_streams_are_limited() {
    let server = ScriptedServer::start().await;
    server.set_max_concurrent_streams(3);
    let (mut client, _driver) = client(&server).await;
    read_response(call(&mut client, STATUS)).await.unwrap();
    assert_eq!(client.current_max_send_streams(), 3);
}
