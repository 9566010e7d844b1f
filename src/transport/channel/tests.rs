use super::*;

#[tokio::test]
async fn an_error_of_a_stream_is_told_from_the_end_of_its_connection() {
    let (near, far) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let mut server = h2::server::handshake(far).await.unwrap();
        let (_, mut first) = server.accept().await.unwrap().unwrap();
        first.send_reset(h2::Reason::CANCEL);
        // The connection goes with the second one.
        drop(server.accept().await);
    });
    let (mut requests, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    let mut start = || {
        let request = Request::get("http://member/path").body(()).unwrap();
        requests.send_request(request, false).unwrap()
    };
    let of_stream = |cause: h2::Error| {
        let error = Error::new(ErrorKind::ConnectionLost, Outcome::Unknown, "");
        is_of_stream(&error.with_source(cause))
    };
    let (response, mut stream) = start();
    assert!(of_stream(response.await.unwrap_err()));
    let late = stream.send_data(Bytes::new(), false);
    assert!(
        of_stream(late.unwrap_err()),
        "sent on a stream that is gone"
    );
    let (response, _stream) = start();
    assert!(!of_stream(response.await.unwrap_err()));
}

#[test]
fn a_timeout_is_told_in_milliseconds_and_never_as_nothing() {
    for (given, told) in [
        (Duration::ZERO, "1m"),
        (Duration::from_micros(1), "1m"),
        (Duration::from_millis(250), "250m"),
        (Duration::from_secs(5), "5000m"),
        (Duration::from_secs(99_999), "99999000m"),
        (Duration::MAX, "99999999m"),
    ] {
        assert_eq!(grpc_timeout(given), told, "{given:?}");
    }
}
