//! Limits on calls in flight and in the queue of the actor `Etcd`, and failures of calls without a caller.

use std::time::Duration;

use actix::Actor;
use actix_etcd::{
    Client, ErrorKind, Etcd, Outcome,
    actor::{OverloadPolicy, RequestFailed},
    kv::{Get, Put, get, put},
    proto,
};
use testbed::{Reply, ScriptedServer};

use crate::support::{
    message_recorder::record_messages,
    scripted_put::PUT,
    wait::{hold, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);

/// Starts a server that never responds to puts.
async fn server_with_hanging_puts() -> (ScriptedServer, Client) {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| Reply::hang());
    let client = Client::builder([server.endpoint()])
        .request_timeout(60 * SECOND)
        .connect()
        .await
        .unwrap();
    (server, client)
}

#[actix::test]
async fn subscriber_receives_only_failures_without_caller() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| {
        Reply::status(8, "etcdserver: mvcc: database space exceeded")
    });
    let client = Client::connect([server.endpoint()]).await.unwrap();
    let (failures, subscriber) = record_messages::<RequestFailed>();
    let etcd = Etcd::new(client).deliver_failures_to(subscriber).start();

    let error = etcd.send(put("awaited", "v")).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    etcd.do_send(put("unawaited", "v"));
    etcd.do_send(put("", "v"));
    until("two failures are received", || {
        failures.lock().unwrap().len() == 2
    })
    .await;
    let mut failures = std::mem::take(&mut *failures.lock().unwrap());
    failures.sort_by_key(|failed| failed.error.kind() == ErrorKind::NoSpace);
    assert_eq!(failures[0].error.kind(), ErrorKind::EmptyKey);
    let unawaited = &failures[1];
    assert_eq!(unawaited.name, "Put");
    let request = unawaited.request::<Put>().unwrap().wire().unwrap();
    assert_eq!(request.key, "unawaited");
    assert!(unawaited.request::<Get>().is_none());
}

#[actix::test]
async fn full_actor_rejects_requests_if_configured() {
    let (server, client) = server_with_hanging_puts().await;
    let (failures, subscriber) = record_messages::<RequestFailed>();
    let etcd = Etcd::new(client)
        .max_in_flight(2)
        .overload_policy(OverloadPolicy::Reject)
        .deliver_failures_to(subscriber)
        .start();
    let in_flight = [etcd.send(put("a", "v")), etcd.send(put("b", "v"))];
    until("two calls are in flight", || server.count(PUT) == 2).await;
    let error = etcd.send(get("c")).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    assert_eq!(error.outcome(), Outcome::NotSent);
    etcd.do_send(put("d", "v"));
    until("the failure is received", || {
        failures.lock().unwrap().len() == 1
    })
    .await;
    assert_eq!(
        failures.lock().unwrap()[0].error.kind(),
        ErrorKind::Overloaded
    );
    // Dropping the futures cancels the calls in flight.
    drop(in_flight);
    until_async("another request is accepted", async || {
        let response = etcd.send(get("e")).await.unwrap();
        response.unwrap_err().kind() != ErrorKind::Overloaded
    })
    .await;
    assert_eq!(server.count(PUT), 2);
}

#[actix::test]
async fn full_actor_queues_requests_in_order() {
    let (server, client) = server_with_hanging_puts().await;
    let etcd = Etcd::new(client).max_in_flight(2).start();
    let mut in_flight = vec![etcd.send(put("a", "v")), etcd.send(put("b", "v"))];
    until("two calls are in flight", || server.count(PUT) == 2).await;
    let cancelled = etcd.send(put("cancelled", "v"));
    let waiting = etcd.send(put("waiting", "v"));
    etcd.do_send(put("unawaited", "v"));
    hold(SECOND / 5).await;
    assert_eq!(server.count(PUT), 2, "a queued request was sent");
    // A request that was cancelled in the queue is not sent.
    drop(cancelled);
    in_flight.pop();
    until("the next call is in flight", || server.count(PUT) == 3).await;
    drop(waiting);
    until("the last call is in flight", || server.count(PUT) == 4).await;
    hold(SECOND / 5).await;
    let keys: Vec<_> = server
        .calls(PUT)
        .into_iter()
        .map(|call| {
            <proto::PutRequest as prost::Message>::decode(call.body)
                .unwrap()
                .key
        })
        .collect();
    assert_eq!(keys[2..], ["waiting", "unawaited"]);
}

#[actix::test]
async fn queue_rejects_requests_above_its_limit() {
    let (server, client) = server_with_hanging_puts().await;
    let (failures, subscriber) = record_messages::<RequestFailed>();
    let etcd = Etcd::new(client)
        .max_in_flight(1)
        .max_queued(2)
        .deliver_failures_to(subscriber)
        .start();
    let in_flight = etcd.send(put("a", "v"));
    until("a call is in flight", || server.count(PUT) == 1).await;
    let waiting = [etcd.send(put("b", "v")), etcd.send(put("c", "v"))];
    let error = etcd.send(put("d", "v")).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    assert_eq!(error.outcome(), Outcome::NotSent);
    for _ in 0..1000 {
        etcd.do_send(put("e", "v"));
    }
    until("all failures are received", || {
        failures.lock().unwrap().len() == 1000
    })
    .await;
    // A queued request is sent when a call ends. Dropping a queued request frees its place.
    drop(in_flight);
    until("the next call is in flight", || server.count(PUT) == 2).await;
    let [second, third] = waiting;
    drop(third);
    until_async("another request is queued", async || {
        let request = etcd.send(put("f", "v"));
        let response = tokio::time::timeout(SECOND / 20, request).await;
        response.is_err()
    })
    .await;
    drop(second);
}

#[actix::test]
async fn panicking_request_fails_only_its_own_call() {
    /// A request that panics when it is sent.
    #[derive(Clone)]
    struct PanickingRequest;

    impl actix::Message for PanickingRequest {
        type Result = actix_etcd::Result<()>;
    }

    impl actix_etcd::request::EtcdRequest<actix_etcd::Client> for PanickingRequest {
        type Response = ();

        fn name(&self) -> &'static str {
            "PanickingRequest"
        }

        fn send_with(
            self,
            _: &Client,
        ) -> std::pin::Pin<Box<dyn Future<Output = actix_etcd::Result<()>> + Send>> {
            panic!("panic on purpose");
        }
    }

    let (server, client) = server_with_hanging_puts().await;
    let etcd = Etcd::new(client).max_in_flight(1).start();
    for _ in 0..3 {
        assert!(etcd.send(PanickingRequest).await.is_err());
    }
    etcd.do_send(put("k", "v"));
    until("the next call is in flight", || server.count(PUT) == 1).await;
}
