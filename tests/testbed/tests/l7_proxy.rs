//! The L7 proxy, in front of scripted servers.

mod grpc_client;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use grpc_client::{AnyResponse, GrpcClient, TIMEOUT};
use testbed::{ErrorStyle, Failure, L7Action, L7Proxy, Reason, Reply, ScriptedServer};
use tokio::time::timeout;

const PATH: &str = "/test/Call";

/// Starts servers that reply with their own index, and a proxy over them.
async fn start(count: u8) -> (Vec<ScriptedServer>, L7Proxy) {
    let mut servers = Vec::new();
    for index in 0..count {
        let server = ScriptedServer::start().await;
        server.on(PATH, move |_| Reply::bytes(vec![index]));
        servers.push(server);
    }
    let ports = servers.iter().map(|server| server.address().port());
    let proxy = L7Proxy::to_ports(ports.collect());
    (servers, proxy)
}

async fn call(client: &mut GrpcClient) -> Result<grpc_client::Response, h2::Error> {
    client.call(PATH, &AnyResponse::default()).await
}

/// Returns the index of the server that replied.
async fn server_behind(client: &mut GrpcClient) -> u8 {
    call(client).await.unwrap().body[5]
}

#[tokio::test]
async fn each_request_goes_to_next_member() {
    let (servers, proxy) = start(3).await;
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    for expected in [0, 1, 2, 0] {
        assert_eq!(server_behind(&mut client).await, expected);
    }
    proxy.on_request(|_| L7Action::forward_to(1));
    for _ in 0..3 {
        assert_eq!(server_behind(&mut client).await, 1);
    }
    assert_eq!(proxy.link().accepted(), 1);
    assert_eq!(
        (
            servers[1].count(PATH),
            proxy.forwarded(1),
            proxy.count(PATH)
        ),
        (4, 4, 7)
    );
}

#[tokio::test]
async fn failures_replace_the_response() {
    let (servers, proxy) = start(1).await;
    proxy.on_request(|request| match request.nth {
        0 => L7Action::fail(Failure::http(503)),
        1 => L7Action::fail(Failure::no_healthy_upstream()),
        2 => L7Action::fail(Failure::reset(Reason::REFUSED_STREAM)),
        _ => L7Action::forward().then_fail(Failure::reset(Reason::INTERNAL_ERROR)),
    });
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    let response = call(&mut client).await.unwrap();
    assert_eq!(
        (response.http_status, response.grpc_status()),
        (503, "none")
    );
    assert!(!response.body.is_empty());
    let response = call(&mut client).await.unwrap();
    assert_eq!((response.http_status, response.grpc_status()), (200, "14"));
    let reset = call(&mut client).await.unwrap_err();
    assert_eq!(reset.reason(), Some(Reason::REFUSED_STREAM));
    assert_eq!(servers[0].count(PATH), 0);
    let reset = call(&mut client).await.unwrap_err();
    assert_eq!(reset.reason(), Some(Reason::INTERNAL_ERROR));
    assert_eq!(servers[0].count(PATH), 1);
}

#[tokio::test]
async fn slow_member_causes_timeout_error() {
    let (servers, proxy) = start(1).await;
    servers[0].on(PATH, |_| Reply::hang());
    proxy.on_request(|_| L7Action::forward().timeout(Duration::from_millis(50)));
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    assert_eq!(call(&mut client).await.unwrap().grpc_status(), "14");
    proxy.set_error_style(ErrorStyle::Nginx);
    assert_eq!(call(&mut client).await.unwrap().http_status, 504);
    let all_cancelled = async {
        while servers[0].cancelled() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let cancelled = timeout(TIMEOUT, all_cancelled).await;
    cancelled.expect("the proxy cancels the calls at the member");
}

#[tokio::test]
async fn silent_stream_is_reset_by_read_timeout() {
    let (servers, proxy) = start(1).await;
    servers[0].on(PATH, |_| {
        Reply::streaming(async |mut sender, _| {
            sender.send_bytes(b"first").await.unwrap();
            sender.closed().await;
        })
    });
    proxy.on_request(|_| L7Action::forward().read_timeout(Duration::from_millis(100)));
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    let reset = call(&mut client).await.unwrap_err();
    assert_eq!(reset.reason(), Some(Reason::CANCEL));
}

#[tokio::test]
async fn headers_are_rewritten() {
    let (servers, proxy) = start(1).await;
    proxy.on_request(|_| {
        L7Action::forward()
            .with_request_header("x-request-id", "7")
            .without_request_header("token")
            .with_response_header("x-served-by", "proxy")
    });
    let seen = Arc::new(Mutex::new(None));
    let record = seen.clone();
    servers[0].on(PATH, move |call| {
        *record.lock().unwrap() = Some(call.metadata);
        Reply::bytes(vec![0])
    });
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    let response = call(&mut client).await.unwrap();
    assert_eq!(response.metadata["x-served-by"], "proxy");
    let seen = seen.lock().unwrap().take().unwrap();
    assert_eq!(
        (&seen["x-request-id"], seen.get("token")),
        (&"7".parse().unwrap(), None)
    );
    assert!(proxy.requests()[0].headers.contains_key("token"));
}

#[tokio::test]
async fn idle_connection_is_shut_down() {
    let (_servers, proxy) = start(1).await;
    proxy.set_idle_timeout(Duration::from_millis(100));
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    call(&mut client).await.unwrap();
    timeout(TIMEOUT, client.driver)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(proxy.go_aways(), 1);
}

#[tokio::test]
async fn connection_ends_after_request_limit() {
    let (servers, proxy) = start(1).await;
    servers[0].on(PATH, |_| {
        Reply::bytes(vec![0]).after(Duration::from_millis(100))
    });
    proxy.set_max_requests(2);
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    // Both complete, although the second one causes the GOAWAY.
    let responses = [(); 2].map(|()| client.send(PATH, &AnyResponse::default()));
    for response in responses {
        let mut body = timeout(TIMEOUT, response)
            .await
            .unwrap()
            .unwrap()
            .into_body();
        assert!(body.data().await.unwrap().is_ok());
    }
    timeout(TIMEOUT, client.driver)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(proxy.go_aways(), 1);
}

#[tokio::test]
async fn unreachable_member_is_skipped() {
    let (mut servers, proxy) = start(2).await;
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    servers.remove(0);
    for _ in 0..4 {
        assert_eq!(server_behind(&mut client).await, 1);
    }
    servers.clear();
    let mut response = call(&mut client).await.unwrap();
    while response.metadata["grpc-message"] != "no healthy upstream" {
        // The open connection to the stopped server fails first.
        response = call(&mut client).await.unwrap();
    }
    assert_eq!(response.grpc_status(), "14");
}

#[tokio::test]
async fn unhealthy_member_gets_no_requests() {
    let (servers, mut proxy) = start(2).await;
    for (server, serving) in servers.iter().zip([1, 2]) {
        server.on("/grpc.health.v1.Health/Check", move |_| {
            Reply::bytes(vec![8, serving])
        });
    }
    proxy.check_health_every(Duration::from_millis(50));
    let mut client = GrpcClient::connect(&proxy.endpoint()).await;
    let healthy_only = async {
        let mut in_a_row = 0;
        while in_a_row < 4 {
            match server_behind(&mut client).await {
                0 => in_a_row += 1,
                _ => in_a_row = 0,
            }
        }
    };
    timeout(TIMEOUT, healthy_only)
        .await
        .expect("server 1 is left");
}
