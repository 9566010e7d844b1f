//! An application's actor that panics or blocks in its handler does not affect other actors.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::{Actor, AsyncContext, Context, Handler, Recipient, fut::wrap_future};
use actix_etcd::{
    Etcd,
    balancer::{ConnectivityChange, ConnectivityState},
    client::SubscribeConnectivity,
    lease::{LeaseEvent, LeaseMessage},
    recipes::{
        discovery::{DiscoveryEvent, discover},
        mutex::LockEvent,
    },
};
use testbed::Cluster;

use crate::support::{
    connected_cluster::StartWithClient,
    message_recorder::record_messages,
    wait::{until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    Panics,
    Blocks,
}

/// Fails at the first message.
struct FaultyActor {
    defect: Defect,
    received: Arc<AtomicUsize>,
}

impl Actor for FaultyActor {
    type Context = Context<Self>;
}

impl<M: actix::Message<Result = ()> + 'static> Handler<M> for FaultyActor {
    type Result = ();

    fn handle(&mut self, _: M, ctx: &mut Context<Self>) {
        self.received.fetch_add(1, Ordering::SeqCst);
        assert_ne!(self.defect, Defect::Panics, "panic on purpose");
        ctx.wait(wrap_future(std::future::pending()));
    }
}

/// Starts a faulty actor. Returns the number of messages it has received, and its address.
fn start_faulty<M>(defect: Defect) -> (Arc<AtomicUsize>, Recipient<M>)
where
    M: actix::Message<Result = ()> + Send + 'static,
{
    let received = Arc::default();
    let actor = FaultyActor {
        defect,
        received: Arc::clone(&received),
    };
    (received, actor.start().recipient())
}

#[actix::test]
async fn faulty_actor_does_not_affect_lease_events() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    for defect in [Defect::Panics, Defect::Blocks] {
        let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
        let (received, recipient) = start_faulty::<LeaseMessage>(defect);
        lease.deliver_to(recipient);
        let (events, recipient) = record_messages::<LeaseMessage>();
        lease.deliver_to(recipient);
        until("the lease is renewed beyond its first TTL", || {
            let renewed =
                |message: &&LeaseMessage| matches!(message.event, LeaseEvent::Renewed { .. });
            events.lock().unwrap().iter().filter(renewed).count() >= 5
        })
        .await;
        assert_eq!(received.load(Ordering::SeqCst), 1, "{defect:?}");
        lease.revoke().await.unwrap();
    }
}

#[actix::test]
async fn faulty_actor_does_not_affect_discovery() {
    let (_cluster, client) = Cluster::start_with_client(1).await;
    let etcd = Etcd::new(client.clone()).start();
    for defect in [Defect::Panics, Defect::Blocks] {
        let target = format!("{defect:?}");
        let (received, recipient) = start_faulty::<DiscoveryEvent>(defect);
        etcd.do_send(discover(target.clone()).deliver_to(recipient));
        let (events, recipient) = record_messages::<DiscoveryEvent>();
        etcd.do_send(discover(target.clone()).deliver_to(recipient));
        let mut registrations = Vec::new();
        for n in 0..5 {
            let registration = client.register(target.clone(), n.to_string()).ttl(LONG);
            registrations.push(registration.await.unwrap());
            until("the new instance is reported", || {
                let events = events.lock().unwrap();
                matches!(events.last(), Some(DiscoveryEvent::Changed(change)) if change.instances.len() == n + 1)
            })
            .await;
        }
        until("the faulty actor has received an event", || {
            received.load(Ordering::SeqCst) == 1
        })
        .await;
    }
}

#[actix::test]
async fn faulty_actor_does_not_keep_its_lock() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (session, other) = (
        etcd.session(LONG).await.unwrap(),
        etcd.session(LONG).await.unwrap(),
    );
    for defect in [Defect::Panics, Defect::Blocks] {
        let (received, recipient) = start_faulty::<LockEvent>(defect);
        let claim = session.mutex("l").lock().deliver_to(recipient);
        until("the faulty actor has the lock", || {
            received.load(Ordering::SeqCst) == 1
        })
        .await;
        // A panicked actor releases the lock by itself, a blocked actor when its claim is dropped.
        let claim = Some(claim).filter(|_| defect == Defect::Panics);
        let guard = other.mutex("l").lock_within(LONG / 2).await.unwrap();
        guard.unlock().await.unwrap();
        drop(claim);
        until_async("the queue is empty", async || {
            etcd.get("l/").prefix().await.unwrap().count == 0
        })
        .await;
    }
}

#[actix::test]
async fn faulty_actor_does_not_affect_connectivity_changes() {
    let (cluster, client) = Cluster::start_with_client(1).await;
    let etcd = Etcd::new(client).start();
    let (panicked, recipient) = start_faulty::<ConnectivityChange>(Defect::Panics);
    etcd.do_send(SubscribeConnectivity(recipient));
    let (blocked, recipient) = start_faulty::<ConnectivityChange>(Defect::Blocks);
    etcd.do_send(SubscribeConnectivity(recipient));
    let (changes, recipient) = record_messages::<ConnectivityChange>();
    etcd.send(SubscribeConnectivity(recipient))
        .await
        .unwrap()
        .unwrap();
    for round in 1..4 {
        cluster.member(0).client_link().reset_now();
        until("the connection is ready again", || {
            let changes = changes.lock().unwrap();
            let ready = |change: &&ConnectivityChange| change.state == ConnectivityState::Ready;
            changes.iter().filter(ready).count() >= round
        })
        .await;
    }
    assert_eq!(panicked.load(Ordering::SeqCst), 1);
    assert_eq!(blocked.load(Ordering::SeqCst), 1);
}
