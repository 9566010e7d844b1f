//! An actor of the user that panics in its handler, or never comes back from it: nobody else notices.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::{Actor, AsyncContext, Context, Handler, Recipient, fut::wrap_future};
use actix_etcd::{
    Client, Etcd,
    balancer::{ConnectivityChange, ConnectivityState},
    client::SubscribeConnectivity,
    lease::{LeaseEvent, LeaseMessage},
    recipes::{
        discovery::{DiscoveryEvent, discover},
        mutex::LockEvent,
    },
};
use testbed::Cluster;

use crate::{
    actor::requests::ear,
    support::wait::{until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Panics,
    GetsStuck,
}

/// Does so at the first message, whichever it is.
struct Bad {
    kind: Kind,
    met: Arc<AtomicUsize>,
}

impl Actor for Bad {
    type Context = Context<Self>;
}

impl<M: actix::Message<Result = ()> + 'static> Handler<M> for Bad {
    type Result = ();

    fn handle(&mut self, _: M, ctx: &mut Context<Self>) {
        self.met.fetch_add(1, Ordering::SeqCst);
        assert_ne!(self.kind, Kind::Panics, "as it does");
        ctx.wait(wrap_future(std::future::pending()));
    }
}

fn bad<M>(kind: Kind) -> (Arc<AtomicUsize>, Recipient<M>)
where
    M: actix::Message<Result = ()> + Send + 'static,
{
    let met = Arc::default();
    let bad = Bad {
        kind,
        met: Arc::clone(&met),
    };
    (met, bad.start().recipient())
}

async fn cluster_and_client() -> (Cluster, Client) {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    (cluster, etcd)
}

#[actix::test]
async fn a_lease_is_kept_and_others_are_told_of_it() {
    let (_cluster, etcd) = cluster_and_client().await;
    for kind in [Kind::Panics, Kind::GetsStuck] {
        let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
        let (met, recipient) = bad::<LeaseMessage>(kind);
        lease.deliver_to(recipient);
        let (news, recipient) = ear::<LeaseMessage>();
        lease.deliver_to(recipient);
        until("it is renewed past its first end", || {
            let renewed = |news: &&LeaseMessage| matches!(news.event, LeaseEvent::Renewed { .. });
            news.lock().unwrap().iter().filter(renewed).count() >= 5
        })
        .await;
        assert_eq!(met.load(Ordering::SeqCst), 1, "{kind:?}");
        lease.revoke().await.unwrap();
    }
}

#[actix::test]
async fn a_list_of_instances_is_live_for_others() {
    let (_cluster, client) = cluster_and_client().await;
    let etcd = Etcd::new(client.clone()).start();
    for kind in [Kind::Panics, Kind::GetsStuck] {
        let target = format!("{kind:?}");
        let (met, recipient) = bad::<DiscoveryEvent>(kind);
        etcd.do_send(discover(target.clone()).deliver_to(recipient));
        let (found, recipient) = ear::<DiscoveryEvent>();
        etcd.do_send(discover(target.clone()).deliver_to(recipient));
        let mut registered = Vec::new();
        for n in 0..5 {
            let one = client.register(target.clone(), n.to_string()).ttl(LONG);
            registered.push(one.await.unwrap());
            until("it is found", || {
                let found = found.lock().unwrap();
                matches!(found.last(), Some(DiscoveryEvent::Changed(now)) if now.instances.len() == n + 1)
            })
            .await;
        }
        until("the bad one was told", || met.load(Ordering::SeqCst) == 1).await;
    }
}

#[actix::test]
async fn a_lock_is_given_back_by_an_actor_that_panicked_and_with_the_claim_of_a_stuck_one() {
    let (_cluster, etcd) = cluster_and_client().await;
    let (one, other) = (
        etcd.session(LONG).await.unwrap(),
        etcd.session(LONG).await.unwrap(),
    );
    for kind in [Kind::Panics, Kind::GetsStuck] {
        let (met, recipient) = bad::<LockEvent>(kind);
        let claim = one.mutex("l").lock().deliver_to(recipient);
        until("it has the lock", || met.load(Ordering::SeqCst) == 1).await;
        let claim = Some(claim).filter(|_| kind == Kind::Panics);
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
async fn changes_of_connectivity_are_told_to_others() {
    let (cluster, client) = cluster_and_client().await;
    let etcd = Etcd::new(client).start();
    let (panicked, recipient) = bad::<ConnectivityChange>(Kind::Panics);
    etcd.do_send(SubscribeConnectivity(recipient));
    let (stuck, recipient) = bad::<ConnectivityChange>(Kind::GetsStuck);
    etcd.do_send(SubscribeConnectivity(recipient));
    let (changes, recipient) = ear::<ConnectivityChange>();
    etcd.send(SubscribeConnectivity(recipient))
        .await
        .unwrap()
        .unwrap();
    for round in 1..4 {
        cluster.member(0).client_link().reset_now();
        until("it is ready again", || {
            let changes = changes.lock().unwrap();
            let ready = |change: &&ConnectivityChange| change.state == ConnectivityState::Ready;
            changes.iter().filter(ready).count() >= round
        })
        .await;
    }
    assert_eq!(panicked.load(Ordering::SeqCst), 1);
    assert_eq!(stuck.load(Ordering::SeqCst), 1);
}
