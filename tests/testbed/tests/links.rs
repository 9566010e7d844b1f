//! The faults of a link do what they say.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use testbed::{Direction, Fault, TcpProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(5);

async fn echoed(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping").await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"ping");
    Ok(())
}

async fn connected(echo: &TcpProxy) -> TcpStream {
    let mut stream = TcpStream::connect(echo.address()).await.unwrap();
    echoed(&mut stream).await.unwrap();
    stream
}

#[tokio::test]
async fn a_healthy_link_counts_what_passes() {
    let echo = TcpProxy::to_echo_server();
    let stream = connected(&echo).await;
    assert_eq!((echo.link().connections(), echo.link().accepted()), (1, 1));
    assert_eq!(echo.link().bytes(Direction::ToServer), 4);
    assert_eq!(echo.link().bytes(Direction::ToClient), 4);
    drop(stream);
    let started = Instant::now();
    while echo.link().connections() > 0 {
        assert!(started.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn refuse_closes_what_is_open_and_refuses_what_is_new() {
    let echo = TcpProxy::to_echo_server();
    let mut stream = connected(&echo).await;
    echo.link().set(Fault::Refuse);
    let refused = TcpStream::connect(echo.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(!matches!(
        timeout(LONG, stream.read(&mut [0])).await.unwrap(),
        Ok(1..)
    ));
    echo.link().heal();
    connected(&echo).await;
}

#[tokio::test]
async fn reset_is_seen_as_a_reset() {
    let echo = TcpProxy::to_echo_server();
    let mut stream = connected(&echo).await;
    echo.link().reset_now();
    let reset = timeout(LONG, stream.read(&mut [0]))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    connected(&echo).await;

    echo.link().set(Fault::Reset);
    let mut stream = TcpStream::connect(echo.address()).await.unwrap();
    let reset = timeout(LONG, stream.read(&mut [0]))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn freeze_moves_no_byte_and_loses_none() {
    let echo = TcpProxy::to_echo_server();
    let mut stream = connected(&echo).await;
    echo.link().set(Fault::Freeze);
    assert!(timeout(SHORT, echoed(&mut stream)).await.is_err());
    let mut fresh = TcpStream::connect(echo.address()).await.unwrap();
    assert!(timeout(SHORT, echoed(&mut fresh)).await.is_err());
    echo.link().heal();
    for stream in [&mut stream, &mut fresh] {
        let mut answer = [0; 4];
        timeout(LONG, stream.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&answer, b"ping");
    }
}

#[tokio::test]
async fn delay_holds_every_byte_but_not_those_behind_it() {
    let echo = TcpProxy::to_echo_server();
    let mut stream = connected(&echo).await;
    let delay = Duration::from_millis(1500);
    echo.link().set(Fault::Delay(delay));
    let mut sent = Vec::new();
    for _ in 0..2 {
        sent.push(Instant::now());
        stream.write_all(b"ping").await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for sent in sent {
        stream.read_exact(&mut [0; 4]).await.unwrap();
        let took = sent.elapsed();
        assert!(took >= 2 * delay, "{took:?} is too early");
        // The second one, had it to wait for the first, would take as much again as a delay.
        let late = took.saturating_sub(2 * delay);
        assert!(late + SHORT * 2 < delay, "{late:?}: delays add up");
    }
}

#[tokio::test]
async fn half_open_stops_one_direction_only() {
    let echo = TcpProxy::to_echo_server();
    for stopped in [Direction::ToClient, Direction::ToServer] {
        let mut stream = connected(&echo).await;
        let (up, down) = (
            echo.link().bytes(Direction::ToServer),
            echo.link().bytes(Direction::ToClient),
        );
        echo.link().set(Fault::HalfOpen(stopped));
        assert!(timeout(SHORT, echoed(&mut stream)).await.is_err());
        let arrived = if stopped == Direction::ToClient { 4 } else { 0 };
        assert_eq!(echo.link().bytes(Direction::ToServer), up + arrived);
        assert_eq!(echo.link().bytes(Direction::ToClient), down);
        echo.link().heal();
        timeout(LONG, stream.read_exact(&mut [0; 4]))
            .await
            .unwrap()
            .unwrap();
    }
}
