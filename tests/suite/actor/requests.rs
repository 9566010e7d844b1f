//! Requests and subscriptions as messages to the actor `Etcd`.

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

use crate::support::{
    message_recorder::record_messages,
    wait::{until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);

#[actix::test]
async fn requests_of_every_kind_work_by_message() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client).start();

    let written = etcd.send(put("k", "1")).await.unwrap().unwrap();
    let found = etcd.send(get("k")).await.unwrap().unwrap();
    assert_eq!(found.kvs[0].value, "1");
    // The same request works in a transaction and as a message.
    let write = put("k", "2");
    let swap = txn()
        .when([Compare::version("k").eq(1)])
        .then([write.clone()]);
    assert!(etcd.send(swap).await.unwrap().unwrap().succeeded);
    etcd.send(write).await.unwrap().unwrap();
    let compaction = etcd.send(compact(written.header.revision)).await.unwrap();
    assert!(compaction.unwrap().header.revision > written.header.revision);
    let deletion = etcd.send(delete("k")).await.unwrap().unwrap();
    assert_eq!(deletion.deleted, 1);

    let lease = etcd.send(grant(60 * SECOND)).await.unwrap().unwrap();
    etcd.send(put("l", "v").lease(lease.id()))
        .await
        .unwrap()
        .unwrap();
    let time_to_live = etcd.send(lease::time_to_live(lease.id()).with_keys());
    assert_eq!(time_to_live.await.unwrap().unwrap().keys, ["l"]);
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
    let keep_leader = maintenance::requests().move_leader(status.leader);
    etcd.send(keep_leader).await.unwrap().unwrap();
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
async fn subscriptions_deliver_events_to_actors() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client).start();

    let (items, recipient) = record_messages::<WatchEvent>();
    let handle = etcd
        .send(watch_keys("k/").prefix().deliver_to(recipient))
        .await
        .unwrap();
    let handle = handle.unwrap();
    // Without a handle to drop, the watch goes on.
    let (detached_items, recipient) = record_messages::<WatchEvent>();
    etcd.try_send(watch_keys("k/").prefix().deliver_to(recipient))
        .unwrap();
    until_async("both watches exist", async || {
        cluster
            .member(0)
            .metric("etcd_debugging_mvcc_watcher_total")
            .await
            == Some(2.0)
    })
    .await;
    etcd.send(put("k/1", "v")).await.unwrap().unwrap();
    let event_count = |items: &Mutex<Vec<WatchEvent>>| {
        let items = items.lock().unwrap();
        let event = |item: &&WatchEvent| matches!(item, WatchEvent::Events(_));
        items.iter().filter(event).count()
    };
    until("both actors have received the event", || {
        event_count(&items) == 1 && event_count(&detached_items) == 1
    })
    .await;
    drop(handle);
    until("the first watch has ended", || {
        matches!(items.lock().unwrap().last(), Some(WatchEvent::Ended(_)))
    })
    .await;
    etcd.send(put("k/2", "v")).await.unwrap().unwrap();
    until("the second watch goes on", || {
        event_count(&detached_items) == 2
    })
    .await;

    let (lease_events, recipient) = record_messages::<LeaseMessage>();
    let lease = etcd
        .send(grant(2 * SECOND).keep_alive().deliver_to(recipient))
        .await;
    let lease = lease.unwrap().unwrap();
    until("the lease is renewed", || {
        let events = lease_events.lock().unwrap();
        let renewed = |message: &LeaseMessage| matches!(message.event, LeaseEvent::Renewed { .. });
        events
            .iter()
            .any(|message| message.lease == lease.id() && renewed(message))
    })
    .await;

    let (changes, recipient) = record_messages::<ConnectivityChange>();
    let subscribed = etcd.send(SubscribeConnectivity(recipient)).await.unwrap();
    subscribed.unwrap();
    cluster.member(0).kill();
    until("the lost connection is reported", || {
        !changes.lock().unwrap().is_empty()
    })
    .await;
}

/// An application's actor that counts visits, and can send puts only.
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

fn start_visits(writer: Recipient<Put>) -> actix::Addr<Visits> {
    let (count, unsaved) = (0, 0);
    Visits {
        writer,
        count,
        unsaved,
    }
    .start()
}

#[actix::test]
async fn recipient_restricts_a_component_to_puts() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client).start();
    let visits = start_visits(etcd.clone().recipient());
    assert_eq!(visits.send(Visit).await.unwrap(), 0);
    assert_eq!(visits.send(Visit).await.unwrap(), 0);
    let found = etcd.send(get("visits")).await.unwrap().unwrap();
    assert_eq!(found.kvs[0].value, "2");
}

/// Replaces `Etcd` in an application's test. Accepts the first put, and rejects all others.
#[derive(Default)]
struct FakeEtcd(Arc<Mutex<Vec<proto::PutRequest>>>);

impl Actor for FakeEtcd {
    type Context = Context<Self>;
}

impl Handler<Put> for FakeEtcd {
    type Result = actix_etcd::Result<actix_etcd::kv::PutResponse>;

    fn handle(&mut self, put: Put, _: &mut Context<Self>) -> Self::Result {
        let mut puts = self.0.lock().unwrap();
        puts.push(put.wire()?);
        if puts.len() > 1 {
            let (kind, outcome) = (ErrorKind::NoSpace, Outcome::Rejected);
            return Err(actix_etcd::Error::new(kind, outcome, "no space"));
        }
        let response = proto::PutResponse {
            header: Some(proto::ResponseHeader::default()),
            ..Default::default()
        };
        response.try_into()
    }
}

#[actix::test]
async fn fake_actor_replaces_etcd_in_tests() {
    let fake = FakeEtcd::default();
    let puts = fake.0.clone();
    let visits = start_visits(fake.start().recipient());
    assert_eq!(visits.send(Visit).await.unwrap(), 0);
    assert_eq!(
        visits.send(Visit).await.unwrap(),
        1,
        "the failed put is not counted"
    );
    let puts = puts.lock().unwrap();
    assert_eq!(
        (&*puts[0].key, &*puts[0].value),
        (&b"visits"[..], &b"1"[..])
    );
    assert_eq!(puts[1].value, "2");
}

#[actix::test]
async fn restarted_actor_keeps_receiving_watch_events() {
    /// Stops after every second event, and is restarted by its supervisor.
    struct StopsOnEvent {
        revisions: Arc<Mutex<Vec<i64>>>,
        restarts: Arc<Mutex<u32>>,
    }

    impl Actor for StopsOnEvent {
        type Context = Context<Self>;
    }

    impl actix::Supervised for StopsOnEvent {
        fn restarting(&mut self, _: &mut Context<Self>) {
            *self.restarts.lock().unwrap() += 1;
        }
    }

    impl Handler<WatchEvent> for StopsOnEvent {
        type Result = ();

        fn handle(&mut self, item: WatchEvent, ctx: &mut Context<Self>) {
            use actix::ActorContext;
            if let WatchEvent::Events(events) = item {
                self.revisions.lock().unwrap().push(events.revision());
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
    let actor = StopsOnEvent {
        revisions: Arc::clone(&revisions),
        restarts: Arc::clone(&restarts),
    };
    let actor = actix::Supervisor::start(move |_| actor);
    let request = watch_keys("k").deliver_to(actor.recipient());
    let handle = etcd.send(request).await.unwrap().unwrap();
    let mut written = Vec::new();
    for n in 0..10 {
        let put = etcd.send(put("k", n.to_string())).await.unwrap();
        written.push(put.unwrap().header.revision);
    }
    until("all events are received", || {
        revisions.lock().unwrap().len() == written.len()
    })
    .await;
    assert_eq!(*revisions.lock().unwrap(), written);
    assert!(*restarts.lock().unwrap() >= 4);
    drop(handle);
}
