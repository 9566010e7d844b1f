//! What cannot work is refused with a typed error, and nothing is sent.

use std::time::{Duration, Instant};

use actix_etcd::{
    Client, ClientBuilder, Error, ErrorKind, Outcome,
    kv::{Compare, get, put},
};
use testbed::{Cluster, Greeting, STATUS, ScriptedServer};

#[tokio::test]
async fn endpoints_that_do_not_parse_are_refused_at_once() {
    for (bad, words) in [
        ("", "it is empty"),
        ("ftp://a", "ftp://a"),
        ("http://a:99999", "http://a:99999"),
        ("http://a:1/path", "http://a:1/path"),
        ("unix://", "unix://"),
    ] {
        let error = Client::connect([bad]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidEndpoint, "{bad}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = Client::connect(Vec::<String>::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoEndpoints);
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_at_once() {
    let builder = || Client::builder(["http://127.0.0.1:1"]);
    for bad in [
        builder().ping_interval(Duration::from_secs(1)),
        builder().request_timeout(Duration::ZERO),
        builder().connect_timeout(Duration::ZERO),
    ] {
        let error = bad.connect_lazy().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let outside = builder()
        .on_current_arbiter()
        .connect_lazy()
        .await
        .unwrap_err();
    assert_eq!(outside.kind(), ErrorKind::InvalidArgument);
    assert!(outside.to_string().contains("actix"), "{outside}");
}

#[tokio::test]
async fn requests_that_cannot_work_are_never_sent() {
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
async fn a_request_above_the_servers_limit_is_explained() {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    // Just above etcd's own limit, and far above: there gRPC refuses before etcd sees it.
    for size in [1_600_000, 3 << 20] {
        let error = etcd.put("k", vec![0; size]).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::RequestTooLarge, Outcome::Rejected)
        );
    }
}

/// Why it does not connect; it takes as long as it was given, and not as long as the default.
async fn refused(builder: ClientBuilder) -> Error {
    let given = Duration::from_millis(800);
    let started = Instant::now();
    let error = builder.request_timeout(given).connect().await.unwrap_err();
    let took = started.elapsed();
    assert!(
        took >= given && took < given + Duration::from_secs(3),
        "{took:?}: {error}"
    );
    error
}

#[tokio::test]
async fn a_port_that_speaks_no_http2_is_explained_within_the_deadline() {
    let server = ScriptedServer::start().await;
    let builder = || Client::builder([server.endpoint()]);
    for (greeting, words) in [
        (
            Greeting::Garbage("HTTP/1.1 400 Bad Request\r\n\r\n".into()),
            "HTTP/2",
        ),
        (
            Greeting::Garbage(bytes::Bytes::from_static(&[
                0x15, 3, 1, 0, 2, 2, 70, 0, 0, 0, 0,
            ])),
            "HTTP/2",
        ),
        (Greeting::Close, &server.endpoint()),
    ] {
        server.set_greeting(greeting);
        let error = refused(builder()).await;
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::Unavailable, Outcome::NotSent)
        );
        assert!(error.to_string().contains(words), "{error}");
    }
    server.set_greeting(Greeting::Silence);
    let silent = refused(builder().connect_timeout(Duration::from_millis(200))).await;
    assert!(silent.to_string().contains("no answer within"), "{silent}");
}

#[tokio::test]
async fn a_server_that_speaks_http2_but_not_grpc_is_explained() {
    let server = ScriptedServer::start().await;
    server.on(STATUS, |_| testbed::Reply::http_status(404));
    let error = refused(Client::builder([server.endpoint()])).await;
    assert!(error.to_string().contains("404"), "{error}");
}

#[tokio::test]
async fn a_cluster_that_is_down_is_named_member_by_member() {
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
        // What was in flight when they died may be lost in other words.
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
