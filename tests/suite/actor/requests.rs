//! Requests as messages to the actor `Etcd`.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Actor, Context, Handler, Recipient};
use actix_etcd::{
    Client, ErrorKind, Etcd, Outcome, WatchEvent,
    auth::{
        self,
        roles::{self, Permission},
        users,
    },
    balancer::ConnectivityChange,
    client::SubscribeConnectivity,
    cluster,
    kv::{Compare, Put, compact, delete, get, put, txn},
    lease::{self, LeaseEvent, LeaseMessage, grant},
    maintenance, proto,
    watch::watch_keys,
};
use testbed::Cluster;

use crate::support::wait::{until, until_async};

const SECOND: Duration = Duration::from_secs(1);

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

pub fn ear<M>() -> (Arc<Mutex<Vec<M>>>, Recipient<M>)
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
    let swap = txn()
        .when([Compare::version("k").eq(1)])
        .then([write.clone()]);
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
    let stay = maintenance::requests().move_leader(status.leader);
    etcd.send(stay).await.unwrap().unwrap();
    let alarms = etcd.send(maintenance::requests().disarm_all()).await;
    assert_eq!(alarms.unwrap().unwrap(), []);
    let add = roles::requests().add("reader");
    etcd.send(add).await.unwrap().unwrap();
    let allow = roles::requests().grant("reader", Permission::read("config/").prefix());
    etcd.send(allow).await.unwrap().unwrap();
    let add = users::requests().add("app", "secret");
    assert!(!format!("{add:?}").contains("secret"));
    etcd.send(add).await.unwrap().unwrap();
    let users = etcd.send(users::requests().list()).await.unwrap().unwrap();
    assert_eq!(users.users, ["app"]);
    let auth = etcd.send(auth::requests().status()).await.unwrap();
    assert!(!auth.unwrap().enabled);
}

#[actix::test]
async fn what_goes_on_is_delivered_to_an_actor() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client).start();

    let (items, recipient) = ear::<WatchEvent>();
    let handle = etcd
        .send(watch_keys("k/").prefix().deliver_to(recipient))
        .await
        .unwrap();
    let handle = handle.unwrap();
    // Nobody waits for this one's handle: it goes on nevertheless.
    let (unasked, recipient) = ear::<WatchEvent>();
    etcd.try_send(watch_keys("k/").prefix().deliver_to(recipient))
        .unwrap();
    until_async("both watches are there", async || {
        cluster
            .member(0)
            .metric("etcd_debugging_mvcc_watcher_total")
            .await
            == Some(2.0)
    })
    .await;
    etcd.send(put("k/1", "v")).await.unwrap().unwrap();
    let events = |items: &Mutex<Vec<WatchEvent>>| {
        let items = items.lock().unwrap();
        let event = |item: &&WatchEvent| matches!(item, WatchEvent::Events(_));
        items.iter().filter(event).count()
    };
    until("both are told", || {
        events(&items) == 1 && events(&unasked) == 1
    })
    .await;
    drop(handle);
    until("the first has ended", || {
        matches!(items.lock().unwrap().last(), Some(WatchEvent::Ended(_)))
    })
    .await;
    etcd.send(put("k/2", "v")).await.unwrap().unwrap();
    until("the second goes on", || events(&unasked) == 2).await;

    let (news, recipient) = ear::<LeaseMessage>();
    let lease = etcd
        .send(grant(2 * SECOND).keep_alive().deliver_to(recipient))
        .await;
    let lease = lease.unwrap().unwrap();
    until("it is renewed", || {
        let news = news.lock().unwrap();
        let renewed = |news: &LeaseMessage| matches!(news.event, LeaseEvent::Renewed { .. });
        news.iter()
            .any(|news| news.lease == lease.id() && renewed(news))
    })
    .await;

    let (changes, recipient) = ear::<ConnectivityChange>();
    let told = etcd.send(SubscribeConnectivity(recipient)).await.unwrap();
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
async fn an_actor_that_is_restarted_goes_on_receiving() {
    /// Stops at every other item; its supervisor starts it again.
    struct Restless(Arc<Mutex<Vec<i64>>>, Arc<Mutex<u32>>);

    impl Actor for Restless {
        type Context = Context<Self>;
    }

    impl actix::Supervised for Restless {
        fn restarting(&mut self, _: &mut Context<Self>) {
            *self.1.lock().unwrap() += 1;
        }
    }

    impl Handler<WatchEvent> for Restless {
        type Result = ();

        fn handle(&mut self, item: WatchEvent, ctx: &mut Context<Self>) {
            use actix::ActorContext;
            if let WatchEvent::Events(events) = item {
                self.0.lock().unwrap().push(events.revision());
                if events.revision() % 2 == 0 {
                    ctx.stop();
                }
            }
        }
    }

    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client).start();
    let (revisions, restarts) = (Arc::default(), Arc::default());
    let restless = Restless(Arc::clone(&revisions), Arc::clone(&restarts));
    let restless = actix::Supervisor::start(move |_| restless);
    let open = watch_keys("k").deliver_to(restless.recipient());
    let handle = etcd.send(open).await.unwrap().unwrap();
    let mut written = Vec::new();
    for n in 0..10 {
        let put = etcd.send(put("k", n.to_string())).await.unwrap();
        written.push(put.unwrap().header.revision);
    }
    until("every change is told", || {
        revisions.lock().unwrap().len() == written.len()
    })
    .await;
    assert_eq!(*revisions.lock().unwrap(), written);
    assert!(*restarts.lock().unwrap() >= 4);
    drop(handle);
}
