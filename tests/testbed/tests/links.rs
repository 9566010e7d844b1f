//! Faults of the link between clients and a server.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use testbed::{Direction, Fault, TcpProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const NO_RESPONSE: Duration = Duration::from_millis(150);
const TIMEOUT: Duration = Duration::from_secs(5);

async fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping").await?;
    let mut response = [0; 4];
    stream.read_exact(&mut response).await?;
    assert_eq!(&response, b"ping");
    Ok(())
}

async fn connect(proxy: &TcpProxy) -> TcpStream {
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    ping(&mut stream).await.unwrap();
    stream
}

#[tokio::test]
async fn healthy_link_counts_connections_and_bytes() {
    let proxy = TcpProxy::to_echo_server();
    let stream = connect(&proxy).await;
    assert_eq!(
        (proxy.link().connections(), proxy.link().accepted()),
        (1, 1)
    );
    assert_eq!(proxy.link().bytes(Direction::ToServer), 4);
    assert_eq!(proxy.link().bytes(Direction::ToClient), 4);
    drop(stream);
    let started = Instant::now();
    while proxy.link().connections() > 0 {
        assert!(started.elapsed() < TIMEOUT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn refuse_closes_open_connections_and_refuses_new() {
    let proxy = TcpProxy::to_echo_server();
    let mut stream = connect(&proxy).await;
    proxy.link().set(Fault::Refuse);
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(!matches!(
        timeout(TIMEOUT, stream.read(&mut [0])).await.unwrap(),
        Ok(1..)
    ));
    proxy.link().heal();
    connect(&proxy).await;
}

#[tokio::test]
async fn reset_is_reported_to_client() {
    let proxy = TcpProxy::to_echo_server();
    let mut stream = connect(&proxy).await;
    proxy.link().reset_now();
    let reset = timeout(TIMEOUT, stream.read(&mut [0]))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    connect(&proxy).await;

    proxy.link().set(Fault::Reset);
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    let reset = timeout(TIMEOUT, stream.read(&mut [0]))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn freeze_holds_bytes_until_healed() {
    let proxy = TcpProxy::to_echo_server();
    let mut stream = connect(&proxy).await;
    proxy.link().set(Fault::Freeze);
    assert!(timeout(NO_RESPONSE, ping(&mut stream)).await.is_err());
    let mut new_stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert!(timeout(NO_RESPONSE, ping(&mut new_stream)).await.is_err());
    proxy.link().heal();
    for stream in [&mut stream, &mut new_stream] {
        let mut response = [0; 4];
        timeout(TIMEOUT, stream.read_exact(&mut response))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&response, b"ping");
    }
}

#[tokio::test]
async fn delays_of_consecutive_bytes_do_not_add_up() {
    let proxy = TcpProxy::to_echo_server();
    let mut stream = connect(&proxy).await;
    let delay = Duration::from_millis(1500);
    proxy.link().set(Fault::Delay(delay));
    let mut sent = Vec::new();
    for _ in 0..2 {
        sent.push(Instant::now());
        stream.write_all(b"ping").await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for sent in sent {
        stream.read_exact(&mut [0; 4]).await.unwrap();
        let took = sent.elapsed();
        assert!(took >= 2 * delay, "{took:?} is less than the delay");
        // If the second message waited for the first, it would be late by almost one delay.
        let late = took.saturating_sub(2 * delay);
        assert!(late + NO_RESPONSE * 2 < delay, "{late:?}: delays add up");
    }
}

#[tokio::test]
async fn half_open_blocks_only_one_direction() {
    let proxy = TcpProxy::to_echo_server();
    for blocked in [Direction::ToClient, Direction::ToServer] {
        let mut stream = connect(&proxy).await;
        let (to_server, to_client) = (
            proxy.link().bytes(Direction::ToServer),
            proxy.link().bytes(Direction::ToClient),
        );
        proxy.link().set(Fault::HalfOpen(blocked));
        assert!(timeout(NO_RESPONSE, ping(&mut stream)).await.is_err());
        let arrived = if blocked == Direction::ToClient { 4 } else { 0 };
        assert_eq!(proxy.link().bytes(Direction::ToServer), to_server + arrived);
        assert_eq!(proxy.link().bytes(Direction::ToClient), to_client);
        proxy.link().heal();
        timeout(TIMEOUT, stream.read_exact(&mut [0; 4]))
            .await
            .unwrap()
            .unwrap();
    }
}
