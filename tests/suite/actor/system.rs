//! The actor `Etcd` and the actix system it lives in.

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

use crate::{
    actor::requests::ear,
    client::shutdown::client_threads,
    support::wait::{until, until_async},
};

const PUT: &str = "/etcdserverpb.KV/Put";
const SECOND: Duration = Duration::from_secs(1);
/// A lease that does not end by itself in a test.
const LONG: Duration = Duration::from_secs(60);
const ALONE: &str = "actor::system::a_system_that_stops_ends_all_that_was_asked_for_by_message";

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

#[test]
fn a_system_that_stops_leaves_no_lease_renewed() {
    /// Holds a lease.
    struct Holder {
        _lease: actix_etcd::Lease,
    }

    impl Actor for Holder {
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
            let asked = etcd.send(grant(2 * SECOND).keep_alive()).await.unwrap();
            let lease = asked.unwrap();
            let mut events = lease.events();
            tokio_stream::StreamExt::next(&mut events).await.unwrap();
            let id = lease.id();
            let holder = Holder { _lease: lease }.start();
            (id, holder)
        });
        actix::System::current().stop();
        system.run().unwrap();
        id
    });
    let id = application.join().unwrap();
    runtime.block_on(async {
        let client = Client::connect(cluster.endpoints()).await.unwrap();
        until_async("the lease has ended with its time", async || {
            client.time_to_live(id).await.unwrap().remaining.is_none()
        })
        .await;
    });
}

/// Other tests have threads and actors of their own: it runs in a process of its own.
#[test]
fn a_system_that_stops_ends_all_that_was_asked_for_by_message() {
    if std::env::var_os("ALONE").is_none() {
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", ALONE, "--nocapture"])
            .env("ALONE", "1")
            .status();
        assert!(alone.unwrap().success());
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(Cluster::start(1));
    let endpoints = cluster.endpoints();
    let application = std::thread::spawn(move || {
        let system = actix::System::new();
        system.block_on(async {
            let etcd = Etcd::new(Client::connect(endpoints).await.unwrap()).start();
            let (found, ear_of_found) = ear::<DiscoveryEvent>();
            let (led, ear_of_led) = ear::<LeaderEvent>();
            etcd.do_send(discover("web").deliver_to(ear_of_found));
            etcd.do_send(leaders("e").deliver_to(ear_of_led));
            etcd.do_send(
                watch_keys("web/")
                    .prefix()
                    .deliver_to(ear::<WatchEvent>().1),
            );
            etcd.do_send(SubscribeConnectivity(ear::<ConnectivityChange>().1));
            etcd.do_send(register("web", "here").ttl(LONG));
            let kept = grant(LONG).keep_alive().revoke_on_drop();
            etcd.do_send(kept.deliver_to(ear::<LeaseMessage>().1));
            until("all of it goes on", || {
                !found.lock().unwrap().is_empty() && !led.lock().unwrap().is_empty()
            })
            .await;
            until_async("both leases are there, and the key", async || {
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
        until("the client's thread has ended", || client_threads() == 0).await;
        until("its actors have ended", || live_actors() == 0).await;
        let client = Client::connect(cluster.endpoints()).await.unwrap();
        until_async("its leases are revoked", async || {
            client.leases().await.unwrap().leases.is_empty()
        })
        .await;
    });
}

#[actix::test]
async fn a_lease_that_was_asked_for_by_message_is_kept_while_its_actor_lives() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(cluster.endpoints()).await.unwrap();
    let etcd = Etcd::new(client.clone()).start();
    let (news, recipient) = ear::<LeaseMessage>();
    let kept = grant(2 * SECOND).keep_alive().revoke_on_drop();
    etcd.do_send(kept.deliver_to(recipient.clone()));
    until("it is renewed a few times", || {
        news.lock().unwrap().len() >= 4
    })
    .await;
    drop(recipient);
    // Nobody has the ear's address but who tells it.
    assert_eq!(client.leases().await.unwrap().leases.len(), 1);

    let mortal = Mortal.start();
    let kept = grant(LONG).keep_alive().revoke_on_drop();
    etcd.do_send(kept.deliver_to(mortal.clone().recipient()));
    until_async("there is another lease", async || {
        client.leases().await.unwrap().leases.len() == 2
    })
    .await;
    mortal.do_send(End);
    until_async("it ends with its actor", async || {
        client.leases().await.unwrap().leases.len() == 1
    })
    .await;
}

/// Ends when it is told to.
struct Mortal;

impl Actor for Mortal {
    type Context = Context<Self>;
}

impl Handler<LeaseMessage> for Mortal {
    type Result = ();

    fn handle(&mut self, _: LeaseMessage, _: &mut Context<Self>) {}
}

#[derive(actix::Message)]
#[rtype(result = "()")]
struct End;

impl Handler<End> for Mortal {
    type Result = ();

    fn handle(&mut self, _: End, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

#[actix::test]
async fn the_service_of_a_system_is_found_everywhere_in_it() {
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
