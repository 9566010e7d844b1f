//! The actor `Etcd` as a part of an actix system: system stop, and the system registry.

use std::time::Duration;

use actix::{Actor, ActorContext, Context, Handler, MailboxError};
use actix_etcd::{
    Client, ErrorKind, Etcd, WatchEvent,
    balancer::ConnectivityChange,
    client::SubscribeConnectivity,
    kv::{get, put},
    lease::{LeaseMessage, grant},
    recipes::{
        discovery::{DiscoveryEvent, discover, register},
        election::{LeaderEvent, leaders},
    },
    test_faults::live_actors,
    watch::watch_keys,
};
use testbed::{Cluster, Reply, ScriptedServer};

use crate::support::{
    message_recorder::record_messages,
    process_isolation::in_own_process,
    process_threads::client_thread_count,
    scripted_put::PUT,
    wait::{until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn system_stop_ends_calls_in_flight_and_client() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(ScriptedServer::start());
    server.on(PUT, |_| Reply::hang());
    let endpoint = server.endpoint();
    let (sender, receiver) = std::sync::mpsc::channel();
    let application = std::thread::spawn(move || {
        let system = actix::System::new();
        let etcd = system.block_on(async {
            let client = Client::connect([endpoint]).await.unwrap();
            Etcd::new(client).start()
        });
        sender.send((actix::System::current(), etcd)).unwrap();
        system.run().unwrap();
    });
    let (system, etcd) = receiver.recv().unwrap();
    let slow_put = put("k", "v").timeout(60 * SECOND);
    let call = runtime.spawn(etcd.send(slow_put));
    runtime.block_on(until("the request has arrived", || server.count(PUT) == 1));
    system.stop();
    application.join().unwrap();
    let ended = runtime.block_on(async { tokio::time::timeout(5 * SECOND, call).await });
    let ended = ended.expect("the call ends with the system").unwrap();
    assert_eq!(ended.unwrap_err(), MailboxError::Closed);
    runtime.block_on(until("the client has disconnected", || {
        server.connections() == 0
    }));
    let late_call = runtime.block_on(etcd.send(get("k")));
    assert_eq!(late_call.unwrap_err(), MailboxError::Closed);
}

#[test]
fn system_stop_ends_lease_renewal() {
    struct LeaseHolder {
        _lease: actix_etcd::Lease,
    }

    impl Actor for LeaseHolder {
        type Context = Context<Self>;
    }

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(Cluster::start(1));
    let endpoints = cluster.endpoints();
    let application = std::thread::spawn(move || {
        let system = actix::System::new();
        let (id, _holder) = system.block_on(async {
            let client = Client::connect(endpoints).await.unwrap();
            let etcd = Etcd::new(client).start();
            let granted = etcd.send(grant(2 * SECOND).keep_alive()).await.unwrap();
            let lease = granted.unwrap();
            let mut events = lease.events();
            tokio_stream::StreamExt::next(&mut events).await.unwrap();
            let id = lease.id();
            let holder = LeaseHolder { _lease: lease }.start();
            (id, holder)
        });
        actix::System::current().stop();
        system.run().unwrap();
        id
    });
    let id = application.join().unwrap();
    runtime.block_on(async {
        let client = Client::connect(cluster.endpoints()).await.unwrap();
        until_async("the lease has expired", async || {
            client.time_to_live(id).await.unwrap().remaining.is_none()
        })
        .await;
    });
}

#[test]
fn system_stop_ends_everything_requested_by_message() {
    // Counts all threads and actors of the process.
    if !in_own_process!() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(Cluster::start(1));
    let endpoints = cluster.endpoints();
    let application = std::thread::spawn(move || {
        let system = actix::System::new();
        system.block_on(async {
            let etcd = Etcd::new(Client::connect(endpoints).await.unwrap()).start();
            let (discovery_events, discovery_recipient) = record_messages::<DiscoveryEvent>();
            let (leader_events, leader_recipient) = record_messages::<LeaderEvent>();
            etcd.do_send(discover("web").deliver_to(discovery_recipient));
            etcd.do_send(leaders("e").deliver_to(leader_recipient));
            etcd.do_send(
                watch_keys("web/")
                    .prefix()
                    .deliver_to(record_messages::<WatchEvent>().1),
            );
            etcd.do_send(SubscribeConnectivity(
                record_messages::<ConnectivityChange>().1,
            ));
            etcd.do_send(register("web", "here").ttl(LONG));
            let lease = grant(LONG).keep_alive().revoke_on_drop();
            etcd.do_send(lease.deliver_to(record_messages::<LeaseMessage>().1));
            until("discovery and election have sent events", || {
                !discovery_events.lock().unwrap().is_empty()
                    && !leader_events.lock().unwrap().is_empty()
            })
            .await;
            until_async("both leases and the key exist", async || {
                let leases = etcd.send(actix_etcd::lease::leases()).await.unwrap();
                let found = etcd.send(get("web/here")).await.unwrap().unwrap();
                leases.unwrap().leases.len() == 2 && found.count == 1
            })
            .await;
        });
        actix::System::current().stop();
        system.run().unwrap();
    });
    application.join().unwrap();
    runtime.block_on(async {
        until("the thread of the client has ended", || {
            client_thread_count() == 0
        })
        .await;
        until("all actors have stopped", || live_actors() == 0).await;
        let client = Client::connect(cluster.endpoints()).await.unwrap();
        until_async("all leases are revoked", async || {
            client.leases().await.unwrap().leases.is_empty()
        })
        .await;
    });
}

#[actix::test]
async fn lease_granted_by_message_ends_with_its_recipient() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client.clone()).start();
    let (events, recipient) = record_messages::<LeaseMessage>();
    let lease = grant(2 * SECOND).keep_alive().revoke_on_drop();
    etcd.do_send(lease.deliver_to(recipient.clone()));
    until("the lease is renewed a few times", || {
        events.lock().unwrap().len() >= 4
    })
    .await;
    drop(recipient);
    // The actor stays alive, because the lease still holds its address.
    assert_eq!(client.leases().await.unwrap().leases.len(), 1);

    let actor = StoppableActor.start();
    let lease = grant(LONG).keep_alive().revoke_on_drop();
    etcd.do_send(lease.deliver_to(actor.clone().recipient()));
    until_async("the second lease exists", async || {
        client.leases().await.unwrap().leases.len() == 2
    })
    .await;
    actor.do_send(Stop);
    until_async("the lease has ended with its recipient", async || {
        client.leases().await.unwrap().leases.len() == 1
    })
    .await;
}

struct StoppableActor;

impl Actor for StoppableActor {
    type Context = Context<Self>;
}

impl Handler<LeaseMessage> for StoppableActor {
    type Result = ();

    fn handle(&mut self, _: LeaseMessage, _: &mut Context<Self>) {}
}

#[derive(actix::Message)]
#[rtype(result = "()")]
struct Stop;

impl Handler<Stop> for StoppableActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

#[actix::test]
async fn system_service_is_found_on_every_arbiter() {
    let error = Etcd::from_registry().send(get("k")).await.unwrap();
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("Etcd::configure"), "{error}");

    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    Etcd::configure(Etcd::new(client.clone()).max_in_flight(10)).unwrap();
    let put = Etcd::from_registry().send(put("k", "v")).await.unwrap();
    put.unwrap();
    let other = actix::Arbiter::new();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    other.spawn(async move {
        let found = Etcd::from_registry().send(get("k")).await.unwrap();
        let _ = sender.send(found.unwrap().kvs.len());
    });
    assert_eq!(receiver.await.unwrap(), 1);
    other.stop();

    // A second configuration replaces the client.
    let another = Cluster::start(1).await;
    let another = Client::connect(another.endpoints()).await.unwrap();
    Etcd::configure(another).unwrap();
    let found = Etcd::from_registry().send(get("k")).await.unwrap();
    assert!(found.unwrap().kvs.is_empty());
}

#[test]
fn system_service_requires_a_system() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime.block_on(async {
        let server = ScriptedServer::start().await;
        let client = Client::connect([server.endpoint()]).await.unwrap();
        Etcd::configure(client).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
