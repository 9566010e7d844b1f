//! How many calls the actor `Etcd` lets through, and what becomes of those nobody waits for.

use std::time::Duration;

use actix::Actor;
use actix_etcd::{
    Client, ErrorKind, Etcd, Outcome,
    actor::{OverloadPolicy, RequestFailed},
    kv::{Get, Put, get, put},
    proto,
};
use testbed::{Reply, ScriptedServer};

use crate::{
    actor::requests::ear,
    support::wait::{hold, until, until_async},
};

const PUT: &str = "/etcdserverpb.KV/Put";
const SECOND: Duration = Duration::from_secs(1);

/// A server whose puts hang.
async fn hanging() -> (ScriptedServer, Client) {
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
async fn failures_nobody_waits_for_reach_the_subscriber_and_others_do_not() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| {
        Reply::status(8, "etcdserver: mvcc: database space exceeded")
    });
    let client = Client::connect([server.endpoint()]).await.unwrap();
    let (failures, subscriber) = ear::<RequestFailed>();
    let etcd = Etcd::new(client).deliver_failures_to(subscriber).start();

    let told = etcd.send(put("asked", "v")).await.unwrap().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::NoSpace);
    etcd.do_send(put("unasked", "v"));
    etcd.do_send(put("", "v"));
    until("two failures are told", || {
        failures.lock().unwrap().len() == 2
    })
    .await;
    let mut failures = std::mem::take(&mut *failures.lock().unwrap());
    failures.sort_by_key(|failed| failed.error.kind() == ErrorKind::NoSpace);
    assert_eq!(failures[0].error.kind(), ErrorKind::EmptyKey);
    let unasked = &failures[1];
    assert_eq!(unasked.name, "Put");
    let request = unasked.request::<Put>().unwrap().wire().unwrap();
    assert_eq!(request.key, "unasked");
    assert!(unasked.request::<Get>().is_none());
}

#[actix::test]
async fn a_full_front_refuses_if_told_so() {
    let (server, client) = hanging().await;
    let (failures, subscriber) = ear::<RequestFailed>();
    let etcd = Etcd::new(client)
        .max_in_flight(2)
        .overload_policy(OverloadPolicy::Reject)
        .deliver_failures_to(subscriber)
        .start();
    let under_way = [etcd.send(put("a", "v")), etcd.send(put("b", "v"))];
    until("two calls are under way", || server.count(PUT) == 2).await;
    let error = etcd.send(get("c")).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    assert_eq!(error.outcome(), Outcome::NotSent);
    etcd.do_send(put("d", "v"));
    until("the other one is told", || {
        failures.lock().unwrap().len() == 1
    })
    .await;
    assert_eq!(
        failures.lock().unwrap()[0].error.kind(),
        ErrorKind::Overloaded
    );
    // Who does not wait any more makes room.
    drop(under_way);
    until_async("there is room", async || {
        let asked = etcd.send(get("e")).await.unwrap();
        asked.unwrap_err().kind() != ErrorKind::Overloaded
    })
    .await;
    assert_eq!(server.count(PUT), 2);
}

#[actix::test]
async fn a_full_front_lets_requests_wait_in_their_order() {
    let (server, client) = hanging().await;
    let etcd = Etcd::new(client).max_in_flight(2).start();
    let mut under_way = vec![etcd.send(put("a", "v")), etcd.send(put("b", "v"))];
    until("two calls are under way", || server.count(PUT) == 2).await;
    let left = etcd.send(put("left", "v"));
    let waiting = etcd.send(put("waiting", "v"));
    etcd.do_send(put("unasked", "v"));
    hold(SECOND / 5).await;
    assert_eq!(server.count(PUT), 2, "the others wait");
    // One that has left the queue is not sent when there is room.
    drop(left);
    under_way.pop();
    until("the next call is under way", || server.count(PUT) == 3).await;
    drop(waiting);
    until("the last call is under way", || server.count(PUT) == 4).await;
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
    assert_eq!(keys[2..], ["waiting", "unasked"]);
}

#[actix::test]
async fn no_more_than_so_many_requests_wait() {
    let (server, client) = hanging().await;
    let (failures, subscriber) = ear::<RequestFailed>();
    let etcd = Etcd::new(client)
        .max_in_flight(1)
        .max_queued(2)
        .deliver_failures_to(subscriber)
        .start();
    let under_way = etcd.send(put("a", "v"));
    until("a call is under way", || server.count(PUT) == 1).await;
    let waiting = [etcd.send(put("b", "v")), etcd.send(put("c", "v"))];
    let error = etcd.send(put("d", "v")).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    assert_eq!(error.outcome(), Outcome::NotSent);
    for _ in 0..1000 {
        etcd.do_send(put("e", "v"));
    }
    until("those nobody waits for are told", || {
        failures.lock().unwrap().len() == 1000
    })
    .await;
    // Who waits, is served; who waits no more, makes room.
    drop(under_way);
    until("the next one is under way", || server.count(PUT) == 2).await;
    let [second, third] = waiting;
    drop(third);
    until_async("there is room to wait", async || {
        let one_more = etcd.send(put("f", "v"));
        let asked = tokio::time::timeout(SECOND / 20, one_more).await;
        asked.is_err()
    })
    .await;
    drop(second);
}

#[actix::test]
async fn a_request_that_panics_costs_its_own_call() {
    /// A request of an application.
    #[derive(Clone)]
    struct Faulty;

    impl actix::Message for Faulty {
        type Result = actix_etcd::Result<()>;
    }

    impl actix_etcd::request::EtcdRequest<actix_etcd::Client> for Faulty {
        type Response = ();

        fn name(&self) -> &'static str {
            "Faulty"
        }

        fn send_with(
            self,
            _: &Client,
        ) -> std::pin::Pin<Box<dyn Future<Output = actix_etcd::Result<()>> + Send>> {
            panic!("it is faulty");
        }
    }

    let (server, client) = hanging().await;
    let etcd = Etcd::new(client).max_in_flight(1).start();
    for _ in 0..3 {
        assert!(etcd.send(Faulty).await.is_err());
    }
    etcd.do_send(put("k", "v"));
    until("the next call is under way", || server.count(PUT) == 1).await;
}
