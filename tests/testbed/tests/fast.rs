//! The fast server answers from a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use bytes::Bytes;
use http::Request;
use testbed::framed;
use tokio::net::TcpStream;

#[tokio::test]
async fn it_answers_reads_and_floods_watches_until_its_input_ends() {
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
    for (path, ends, at_least) in [
        ("/etcdserverpb.KV/Range", true, 80),
        ("/etcdserverpb.Watch/Watch", false, 2_500 * 80),
    ] {
        let request = Request::post(format!("http://127.0.0.1{path}"))
            .body(())
            .unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        // A watch's create request with nothing in it.
        let question: Bytes = if ends {
            framed(b"")
        } else {
            framed(&[0x0a, 0])
        };
        body.send_data(question, ends).unwrap();
        let mut answer = response.await.unwrap().into_body();
        let mut got = 0;
        while got < at_least {
            let data = answer.data().await.expect("there is more").unwrap();
            answer.flow_control().release_capacity(data.len()).unwrap();
            got += data.len();
        }
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
