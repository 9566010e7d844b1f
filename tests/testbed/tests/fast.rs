//! The fast server, run as a separate process.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use bytes::Bytes;
use http::Request;
use testbed::framed;
use tokio::net::TcpStream;

#[tokio::test]
async fn fast_server_serves_until_stdin_closes() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fast_server"))
        .args(["2500", "100"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut endpoint = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut endpoint)
        .unwrap();
    let socket = TcpStream::connect(endpoint.trim().trim_start_matches("http://"))
        .await
        .unwrap();
    let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
    let _driver = tokio::spawn(connection);
    for (path, end_stream, min_bytes) in [
        ("/etcdserverpb.KV/Range", true, 80),
        ("/etcdserverpb.Watch/Watch", false, 2_500 * 80),
    ] {
        let request = Request::post(format!("http://127.0.0.1{path}"))
            .body(())
            .unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        // The message of the watch is an empty create request.
        let message: Bytes = if end_stream {
            framed(b"")
        } else {
            framed(&[0x0a, 0])
        };
        body.send_data(message, end_stream).unwrap();
        let mut response_body = response.await.unwrap().into_body();
        let mut received = 0;
        while received < min_bytes {
            let data = response_body
                .data()
                .await
                .expect("the response continues")
                .unwrap();
            response_body
                .flow_control()
                .release_capacity(data.len())
                .unwrap();
            received += data.len();
        }
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
