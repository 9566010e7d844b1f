//! Requests as messages to the actor `Etcd`.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Actor, Context, Handler, MailboxError, Recipient};
use actix_etcd::{
    Client, ConnectivityChange, DeliverConnectivity, ErrorKind, Etcd, Outcome, RequestFailed,
    WatchItem, WhenFull, auth_admin, cluster,
    kv::{Put, compact, delete, get, put, txn, version},
    lease::{self, LeaseEvent, LeaseNews, grant},
    maintenance, proto,
    roles::{self, Permission},
    users, watch,
};
use testbed::{Cluster, Reply, ScriptedServer};

use crate::wait::{hold, until, until_async};

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

/// Keeps what it is told.
struct Ear<M>(Arc<Mutex<Vec<M>>>);

impl<M: Unpin + 'static> Actor for Ear<M> {
    type Context = Context<Self>;
}

impl<M: actix::Message<Result = ()> + Unpin + 'static> Handler<M> for Ear<M> {
    type Result = ();

    fn handle(&mut self, heard: M, _: &mut Context<Self>) {
        self.0.lock().unwrap().push(heard);
    }
}

fn ear<M>() -> (Arc<Mutex<Vec<M>>>, Recipient<M>)
where
    M: actix::Message<Result = ()> + Send + Unpin + 'static,
{
    let heard = Arc::default();
    let ear = Ear(Arc::clone(&heard)).start();
    (heard, ear.recipient())
}

#[actix::test]
async fn requests_of_every_kind_go_by_message() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client).start();

    let written = etcd.send(put("k", "1")).await.unwrap().unwrap();
    let found = etcd.send(get("k")).await.unwrap().unwrap();
    assert_eq!(found.kvs[0].value, "1");
    // The same object: in a transaction, and as a message.
    let write = put("k", "2");
    let swap = txn().when([version("k").eq(1)]).then([write.clone()]);
    assert!(etcd.send(swap).await.unwrap().unwrap().succeeded);
    etcd.send(write).await.unwrap().unwrap();
    let done = etcd.send(compact(written.header.revision)).await.unwrap();
    assert!(done.unwrap().header.revision > written.header.revision);
    let gone = etcd.send(delete("k")).await.unwrap().unwrap();
    assert_eq!(gone.deleted, 1);

    let lease = etcd.send(grant(60 * SECOND)).await.unwrap().unwrap();
    etcd.send(put("l", "v").lease(lease.id()))
        .await
        .unwrap()
        .unwrap();
    let left = etcd.send(lease::time_to_live(lease.id()).with_keys());
    assert_eq!(left.await.unwrap().unwrap().keys, ["l"]);
    let renewed = etcd.send(lease::keep_alive_once(lease.id())).await.unwrap();
    assert_eq!(renewed.unwrap().ttl, 60 * SECOND);
    let all = etcd.send(lease::leases()).await.unwrap().unwrap();
    assert_eq!(all.leases, [lease.id()]);
    etcd.send(lease::revoke(lease.id())).await.unwrap().unwrap();
    assert!(etcd.send(get("l")).await.unwrap().unwrap().kvs.is_empty());

    let members = etcd.send(cluster::requests().list()).await.unwrap();
    assert_eq!(members.unwrap().members.len(), 1);
    let status = maintenance::requests().status().at(&cluster.endpoints()[0]);
    let status = etcd.send(status).await.unwrap().unwrap();
    assert_eq!(status.leader, status.header.member_id);
    let add = roles::requests().add("reader");
    etcd.send(add).await.unwrap().unwrap();
    let allow = roles::requests().grant("reader", Permission::read("config/").prefix());
    etcd.send(allow).await.unwrap().unwrap();
    let add = users::requests().add("app", "secret");
    assert!(!format!("{add:?}").contains("secret"));
    etcd.send(add).await.unwrap().unwrap();
    let users = etcd.send(users::requests().list()).await.unwrap().unwrap();
    assert_eq!(users.users, ["app"]);
    let auth = etcd.send(auth_admin::requests().status()).await.unwrap();
    assert!(!auth.unwrap().enabled);
}

#[actix::test]
async fn what_goes_on_is_delivered_to_an_actor() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client).start();

    let (items, recipient) = ear::<WatchItem>();
    let handle = etcd.send(watch("k/").prefix().to(recipient)).await.unwrap();
    let handle = handle.unwrap();
    // Nobody waits for this one's handle: it goes on nevertheless.
    let (unasked, recipient) = ear::<WatchItem>();
    etcd.try_send(watch("k/").prefix().to(recipient)).unwrap();
    until_async("both watches are there", async || {
        cluster
            .member(0)
            .metric("etcd_debugging_mvcc_watcher_total")
            .await
            == Some(2.0)
    })
    .await;
    etcd.send(put("k/1", "v")).await.unwrap().unwrap();
    let events = |items: &Mutex<Vec<WatchItem>>| {
        let items = items.lock().unwrap();
        let event = |item: &&WatchItem| matches!(item, WatchItem::Events(_));
        items.iter().filter(event).count()
    };
    until("both are told", || {
        events(&items) == 1 && events(&unasked) == 1
    })
    .await;
    drop(handle);
    until("the first has ended", || {
        matches!(items.lock().unwrap().last(), Some(WatchItem::Ended(_)))
    })
    .await;
    etcd.send(put("k/2", "v")).await.unwrap().unwrap();
    until("the second goes on", || events(&unasked) == 2).await;

    let (news, recipient) = ear::<LeaseNews>();
    let lease = etcd
        .send(grant(2 * SECOND).keep_alive().to(recipient))
        .await;
    let lease = lease.unwrap().unwrap();
    until("it is renewed", || {
        let news = news.lock().unwrap();
        let renewed = |news: &LeaseNews| matches!(news.event, LeaseEvent::Renewed { .. });
        news.iter()
            .any(|news| news.lease == lease.id() && renewed(news))
    })
    .await;

    let (changes, recipient) = ear::<ConnectivityChange>();
    let told = etcd.send(DeliverConnectivity(recipient)).await.unwrap();
    told.unwrap();
    cluster.member(0).kill();
    until("the end of the connection is told", || {
        !changes.lock().unwrap().is_empty()
    })
    .await;
}

/// An actor of an application: counts visits, and may do nothing but write.
struct Visits {
    writer: Recipient<Put>,
    count: u32,
    unsaved: u32,
}

struct Visit;

impl actix::Message for Visit {
    type Result = u32;
}

impl Actor for Visits {
    type Context = Context<Self>;
}

impl Handler<Visit> for Visits {
    type Result = actix::ResponseActFuture<Self, u32>;

    fn handle(&mut self, _: Visit, _: &mut Context<Self>) -> Self::Result {
        use actix::{ActorFutureExt, WrapFuture};
        self.count += 1;
        let saved = self.writer.send(put("visits", self.count.to_string()));
        Box::pin(saved.into_actor(self).map(|saved, this, _| {
            if !matches!(saved, Ok(Ok(_))) {
                this.unsaved += 1;
            }
            this.unsaved
        }))
    }
}

fn visits(writer: Recipient<Put>) -> actix::Addr<Visits> {
    let (count, unsaved) = (0, 0);
    Visits {
        writer,
        count,
        unsaved,
    }
    .start()
}

#[actix::test]
async fn a_component_can_be_given_the_right_to_put_and_no_other() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client).start();
    let visits = visits(etcd.clone().recipient());
    assert_eq!(visits.send(Visit).await.unwrap(), 0);
    assert_eq!(visits.send(Visit).await.unwrap(), 0);
    let found = etcd.send(get("visits")).await.unwrap().unwrap();
    assert_eq!(found.kvs[0].value, "2");
}

/// Stands in for etcd in an application's test: takes the first put, and refuses the others.
#[derive(Default)]
struct FakeEtcd(Arc<Mutex<Vec<proto::PutRequest>>>);

impl Actor for FakeEtcd {
    type Context = Context<Self>;
}

impl Handler<Put> for FakeEtcd {
    type Result = actix_etcd::Result<actix_etcd::kv::PutResponse>;

    fn handle(&mut self, put: Put, _: &mut Context<Self>) -> Self::Result {
        let mut taken = self.0.lock().unwrap();
        taken.push(put.wire()?);
        if taken.len() > 1 {
            let (kind, outcome) = (ErrorKind::NoSpace, Outcome::Rejected);
            return Err(actix_etcd::Error::new(kind, outcome, "no space"));
        }
        let answer = proto::PutResponse {
            header: Some(proto::ResponseHeader::default()),
            ..Default::default()
        };
        answer.try_into()
    }
}

#[actix::test]
async fn an_actor_is_tested_with_a_fake_that_answers_the_same_messages() {
    let fake = FakeEtcd::default();
    let taken = fake.0.clone();
    let visits = visits(fake.start().recipient());
    assert_eq!(visits.send(Visit).await.unwrap(), 0);
    assert_eq!(
        visits.send(Visit).await.unwrap(),
        1,
        "the failed one counts"
    );
    let taken = taken.lock().unwrap();
    assert_eq!(
        (&*taken[0].key, &*taken[0].value),
        (&b"visits"[..], &b"1"[..])
    );
    assert_eq!(taken[1].value, "2");
}

#[actix::test]
async fn failures_nobody_waits_for_reach_the_subscriber_and_others_do_not() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| {
        Reply::status(8, "etcdserver: mvcc: database space exceeded")
    });
    let client = Client::connect([server.endpoint()]).await.unwrap();
    let (failures, subscriber) = ear::<RequestFailed>();
    let etcd = Etcd::new(client).failures_to(subscriber).start();

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
    assert!(unasked.request::<actix_etcd::kv::Get>().is_none());
}

#[actix::test]
async fn a_full_front_refuses_if_told_so() {
    let (server, client) = hanging().await;
    let (failures, subscriber) = ear::<RequestFailed>();
    let etcd = Etcd::new(client)
        .at_most(2)
        .when_full(WhenFull::Refuse)
        .failures_to(subscriber)
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
async fn a_full_front_lets_requests_wait_in_its_mailbox() {
    let (server, client) = hanging().await;
    let etcd = Etcd::new(client).at_most(2).start();
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

#[test]
fn a_system_that_stops_ends_the_calls_in_flight_and_the_client() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(ScriptedServer::start());
    server.on(PUT, |_| Reply::hang());
    let endpoint = server.endpoint();
    let (tell, told) = std::sync::mpsc::channel();
    let application = std::thread::spawn(move || {
        let system = actix::System::new();
        let etcd = system.block_on(async {
            let client = Client::connect([endpoint]).await.unwrap();
            Etcd::new(client).start()
        });
        tell.send((actix::System::current(), etcd)).unwrap();
        system.run().unwrap();
    });
    let (system, etcd) = told.recv().unwrap();
    let long = put("k", "v").timeout(60 * SECOND);
    let waiting = runtime.spawn(etcd.send(long));
    runtime.block_on(until("the request is there", || server.count(PUT) == 1));
    system.stop();
    application.join().unwrap();
    let ended = runtime.block_on(async { tokio::time::timeout(5 * SECOND, waiting).await });
    let ended = ended.expect("it ends with its system").unwrap();
    assert_eq!(ended.unwrap_err(), MailboxError::Closed);
    runtime.block_on(until("the client has ended", || server.connections() == 0));
    let late = runtime.block_on(etcd.send(get("k")));
    assert_eq!(late.unwrap_err(), MailboxError::Closed);
}

#[actix::test]
async fn the_service_of_a_system_is_found_everywhere_in_it() {
    let error = Etcd::from_registry().send(get("k")).await.unwrap();
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("Etcd::configure"), "{error}");

    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    Etcd::configure(Etcd::new(client.clone()).at_most(10)).unwrap();
    let put = Etcd::from_registry().send(put("k", "v")).await.unwrap();
    put.unwrap();
    let other = actix::Arbiter::new();
    let (tell, told) = tokio::sync::oneshot::channel();
    other.spawn(async move {
        let found = Etcd::from_registry().send(get("k")).await.unwrap();
        let _ = tell.send(found.unwrap().kvs.len());
    });
    assert_eq!(told.await.unwrap(), 1);
    other.stop();

    // Configured again, it uses the new client.
    let another = Cluster::start(1).await;
    let another = Client::connect(another.endpoints()).await.unwrap();
    Etcd::configure(another).unwrap();
    let found = Etcd::from_registry().send(get("k")).await.unwrap();
    assert!(found.unwrap().kvs.is_empty());
}

#[test]
fn a_service_needs_a_system() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime.block_on(async {
        let server = ScriptedServer::start().await;
        let client = Client::connect([server.endpoint()]).await.unwrap();
        Etcd::configure(client).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
