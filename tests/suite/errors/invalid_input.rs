//! Invalid input fails with a typed error, and no request is sent. Unusable servers are named in the error.

use std::time::{Duration, Instant};

use actix_etcd::{
    Client, ClientBuilder, Error, ErrorKind, Outcome,
    kv::{Compare, get, put},
};
use testbed::{Cluster, Greeting, STATUS, ScriptedServer};

use crate::support::wait::TEST_TIMEOUT;

#[tokio::test]
async fn invalid_endpoints_are_refused() {
    for (endpoint, expected) in [
        ("", "it is empty"),
        ("2379", "the host is missing"),
        ("http:/a:1", "`://`"),
        ("ftp://a", "ftp://a"),
        ("http://a:99999", "http://a:99999"),
        ("http://a:1/path", "http://a:1/path"),
        ("unix://", "unix://"),
    ] {
        let error = Client::connect([endpoint]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidEndpoint, "{endpoint}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = Client::connect(Vec::<String>::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoEndpoints);
}

#[tokio::test]
async fn invalid_options_are_refused() {
    let builder = || Client::builder(["http://127.0.0.1:1"]);
    for invalid in [
        builder().ping_interval(Duration::from_secs(1)),
        builder().request_timeout(Duration::ZERO),
        builder().connect_timeout(Duration::ZERO),
    ] {
        let error = invalid.connect_lazy().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let without_system = builder()
        .on_current_arbiter()
        .connect_lazy()
        .await
        .unwrap_err();
    assert_eq!(without_system.kind(), ErrorKind::InvalidArgument);
    assert!(
        without_system.to_string().contains("actix"),
        "{without_system}"
    );
}

#[tokio::test]
async fn invalid_requests_are_not_sent() {
    let server = ScriptedServer::start().await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let empty = [
        etcd.get("").await.map(drop),
        etcd.put("", "v").await.map(drop),
        etcd.delete("").await.map(drop),
        etcd.txn().then([put("", "v")]).await.map(drop),
        etcd.txn()
            .when([Compare::version("").eq(0)])
            .await
            .map(drop),
    ];
    for result in empty {
        let error = result.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::EmptyKey, Outcome::NotSent)
        );
    }
    let invalid = [
        etcd.get("a").prefix().from_key().await.map(drop),
        etcd.get("b").range("a").await.map(drop),
        etcd.delete("a").prefix().range("b").await.map(drop),
        etcd.get("a").limit(-1).await.map(drop),
        etcd.get("a").revision(-1).await.map(drop),
        etcd.get("a")
            .min_mod_revision(5)
            .max_mod_revision(4)
            .await
            .map(drop),
        etcd.get("a").count_only().keys_only().await.map(drop),
        etcd.get("a")
            .prefix()
            .limit(5)
            .first_by_key()
            .await
            .map(drop),
        etcd.get("a")
            .prefix()
            .last_by_key()
            .limit(5)
            .await
            .map(drop),
        etcd.get("a")
            .prefix()
            .sort_by_key()
            .sort_by_value()
            .await
            .map(drop),
        etcd.get("a")
            .prefix()
            .ascending()
            .descending()
            .await
            .map(drop),
        etcd.put("a", "v").ignore_value().await.map(drop),
        etcd.put("a", "v").lease(1).ignore_lease().await.map(drop),
        etcd.compact(0).await.map(drop),
        etcd.txn().then([get("a").limit(-1)]).await.map(drop),
    ];
    for result in invalid {
        let error = result.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::InvalidArgument, Outcome::NotSent)
        );
    }
    let sent = server
        .all_calls()
        .into_iter()
        .filter(|call| call.path.contains("KV"));
    assert_eq!(sent.count(), 0);
}

#[tokio::test]
async fn oversized_request_is_rejected() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    // Just above the limit of etcd, and above the limit of gRPC, which rejects the request before etcd sees it.
    for size in [1_600_000, 3 << 20] {
        let error = etcd.put("k", vec![0; size]).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::RequestTooLarge, Outcome::Rejected)
        );
    }
}

/// Returns the error of `connect`. It must fail at the timeout given here, not at the default timeout.
async fn connect_error(builder: ClientBuilder) -> Error {
    let timeout = Duration::from_millis(800);
    let started = Instant::now();
    let error = builder
        .request_timeout(timeout)
        .connect()
        .await
        .unwrap_err();
    let elapsed = started.elapsed();
    assert!(
        elapsed >= timeout && elapsed < timeout + Duration::from_secs(3),
        "{elapsed:?}: {error}"
    );
    error
}

#[tokio::test]
async fn port_without_http2_is_reported() {
    let server = ScriptedServer::start().await;
    let builder = || Client::builder([server.endpoint()]);
    for (greeting, expected) in [
        (
            Greeting::Garbage("HTTP/1.1 400 Bad Request\r\n\r\n".into()),
            "HTTP/2",
        ),
        (Greeting::Close, &server.endpoint()),
    ] {
        server.set_greeting(greeting);
        let error = connect_error(builder()).await;
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::Unavailable, Outcome::NotSent)
        );
        assert!(error.to_string().contains(expected), "{error}");
    }
    server.set_greeting(Greeting::Silence);
    let silent = connect_error(builder().connect_timeout(Duration::from_millis(200))).await;
    assert!(
        silent.to_string().contains("no response within"),
        "{silent}"
    );
}

#[tokio::test]
async fn tls_alert_on_plain_connection_ends_connect() {
    let server = ScriptedServer::start().await;
    let alert: &[u8] = &[0x15, 3, 1, 0, 2, 2, 70, 0, 0, 0, 0];
    server.set_greeting(Greeting::Garbage(bytes::Bytes::from_static(alert)));
    let started = Instant::now();
    let builder = Client::builder([server.endpoint()]).request_timeout(TEST_TIMEOUT);
    let error = builder.connect().await.unwrap_err();
    assert!(started.elapsed() < TEST_TIMEOUT / 2, "{error}");
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::TlsFailed, Outcome::NotSent)
    );
    assert!(error.to_string().contains("https://"), "{error}");
}

#[tokio::test]
async fn http2_server_without_grpc_is_reported() {
    let server = ScriptedServer::start().await;
    server.on(STATUS, |_| testbed::Reply::http_status(404));
    let error = connect_error(Client::builder([server.endpoint()])).await;
    assert!(error.to_string().contains("404"), "{error}");
}

#[tokio::test]
async fn unavailable_error_names_every_member() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::builder(cluster.endpoints())
        .request_timeout(Duration::from_millis(500))
        .connect()
        .await
        .unwrap();
    for member in cluster.members() {
        member.kill();
    }
    let error = loop {
        // A request in flight at the time of the kill may fail with another kind.
        match etcd.get("k").await {
            Err(error) if error.kind() == ErrorKind::Unavailable => break error,
            _ => {}
        }
    };
    for endpoint in cluster.endpoints() {
        assert!(error.to_string().contains(&endpoint), "{error}");
    }
    assert!(error.to_string().contains("refused"), "{error}");
}
