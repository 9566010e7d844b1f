//! Locks, elections and singletons as an actor hears of them: by messages.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Actor, ActorContext, Context, Handler};
use actix_etcd::{
    Client, ErrorKind, Etcd,
    lease::LeaseLost,
    recipes::{
        discovery::DiscoveryEvent,
        election::{CandidateEvent, LeaderEvent, leaders},
        mutex::{LockEvent, OwnershipLost},
        session::SessionEvent,
        singleton::SingletonEvent,
    },
};
use testbed::{Cluster, Fault};

use crate::{
    actor::requests::ear,
    support::wait::{until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

async fn cluster_and_client() -> (Cluster, Client) {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    (cluster, etcd)
}

type Heard<M> = Arc<Mutex<Vec<M>>>;

fn lock_words(heard: &Heard<LockEvent>) -> String {
    let words = |event: &LockEvent| match event {
        LockEvent::Acquired(_) => "acquired".to_owned(),
        LockEvent::Lost(loss) => format!("lost {loss:?}"),
        LockEvent::Released => "released".to_owned(),
        LockEvent::Failed(error) => format!("failed {:?}", error.kind()),
        _ => "?".to_owned(),
    };
    let heard = heard.lock().unwrap();
    let words: Vec<_> = heard.iter().map(words).collect();
    words.join(", ")
}

async fn hears(heard: &Heard<LockEvent>, words: &str) {
    until(words, || lock_words(heard) == words).await;
}

#[actix::test]
async fn actors_have_a_lock_one_after_the_other() {
    let (_cluster, etcd) = cluster_and_client().await;
    let session = etcd.session(LONG).await.unwrap();
    let other = etcd.session(LONG).await.unwrap();
    let (a, ear_of_a) = ear();
    let (b, ear_of_b) = ear();
    let claim = session.mutex("l").lock().deliver_to(ear_of_a);
    hears(&a, "acquired").await;
    let waiting = other.mutex("l").lock().deliver_to(ear_of_b);
    until_async("both are in the queue", async || {
        etcd.get("l/").prefix().await.unwrap().count == 2
    })
    .await;
    assert_eq!(lock_words(&b), "");
    let LockEvent::Acquired(held) = a.lock().unwrap()[0].clone() else {
        unreachable!("it was acquired");
    };
    assert!(held.txn().await.unwrap().succeeded);
    claim.release().await;
    hears(&a, "acquired, released").await;
    hears(&b, "acquired").await;
    assert!(!held.txn().await.unwrap().succeeded, "it is another's now");
    drop(waiting);
    hears(&b, "acquired, released").await;
    until_async("the lock is free", async || {
        etcd.get("l/").prefix().await.unwrap().count == 0
    })
    .await;
}

#[actix::test]
async fn an_actor_hears_how_it_lost_its_lock() {
    let (cluster, etcd) = cluster_and_client().await;
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let session = etcd.session(LONG).await.unwrap();
    let (taken, ear_of_taken) = ear();
    let _claim = session.mutex("a").lock().deliver_to(ear_of_taken);
    hears(&taken, "acquired").await;
    direct.delete("a/").prefix().await.unwrap();
    hears(&taken, "acquired, lost Taken").await;

    let (revoked, ear_of_revoked) = ear();
    let _revoked = session.mutex("b").lock().deliver_to(ear_of_revoked);
    hears(&revoked, "acquired").await;
    direct.revoke(session.lease().unwrap()).await.unwrap();
    until("it hears of the loss of its session", || {
        let heard = revoked.lock().unwrap();
        // By the key or by the lease, whichever is seen first.
        matches!(
            heard[..],
            [
                LockEvent::Acquired(_),
                LockEvent::Lost(OwnershipLost::Taken | OwnershipLost::Session(LeaseLost::Revoked))
            ]
        )
    })
    .await;
    until("the session is lost", || session.lease().is_none()).await;
    let (late, ear_of_late) = ear();
    let _late = session.mutex("c").lock().deliver_to(ear_of_late);
    hears(&late, "failed SessionLost").await;

    let short = etcd.session(2 * SECOND).await.unwrap();
    let (cut_off, ear_of_cut_off) = ear();
    let _cut_off = short.mutex("d").lock().deliver_to(ear_of_cut_off);
    hears(&cut_off, "acquired").await;
    let next = direct.session(LONG).await.unwrap();
    let mutex = next.mutex("d");
    cluster.member(0).client_link().set(Fault::Freeze);
    let _guard = mutex.lock().await.unwrap();
    hears(&cut_off, "acquired, lost AtRisk").await;
}

#[actix::test]
async fn who_gives_up_waiting_for_a_lock_has_left_the_queue() {
    let (_cluster, etcd) = cluster_and_client().await;
    let session = etcd.session(LONG).await.unwrap();
    let guard = session.mutex("l").lock().await.unwrap();
    let other = etcd.session(LONG).await.unwrap();
    let keys = async || etcd.get("l/").prefix().await.unwrap().count;
    let (heard, ear_of_waiter) = ear();
    let waiting = other.mutex("l").lock().deliver_to(ear_of_waiter);
    until_async("it waits", async || keys().await == 2).await;
    waiting.release().await;
    assert_eq!(keys().await, 1);
    hears(&heard, "released").await;
    // Whether its key is there already or on its way.
    for _ in 0..10 {
        let (heard, ear_of_waiter) = ear();
        other
            .mutex("l")
            .lock()
            .deliver_to(ear_of_waiter)
            .release()
            .await;
        assert_eq!(keys().await, 1);
        hears(&heard, "released").await;
    }
    // Another task of the same session waits before the queue, where there is nothing to leave.
    let (heard, ear_of_second) = ear();
    let second = session.mutex("l").lock().deliver_to(ear_of_second);
    second.release().await;
    hears(&heard, "released").await;
    guard.unlock().await.unwrap();
}

#[actix::test]
async fn who_asks_a_client_that_was_shut_down_is_told_so() {
    let (_cluster, etcd) = cluster_and_client().await;
    let session = etcd.session(LONG).await.unwrap();
    let (mutex, election) = (session.mutex("l"), session.election("e"));
    etcd.clone().shutdown().await;
    let (lock, ear_of_lock) = ear();
    let claim = mutex.lock().deliver_to(ear_of_lock);
    until("the end is told of the lock", || {
        let heard = lock.lock().unwrap();
        matches!(heard[..], [LockEvent::Failed(_)])
    })
    .await;
    claim.release().await;
    let (candidate, ear_of_candidate) = ear();
    let _claim = election.campaign("me").deliver_to(ear_of_candidate);
    until("the end is told of the candidacy", || {
        let heard = candidate.lock().unwrap();
        matches!(heard[..], [CandidateEvent::Failed(_)])
    })
    .await;
    let (seen, observer) = ear();
    let _told = etcd.leaders("e").deliver_to(observer);
    until("the end is told of the leaders", || {
        let seen = seen.lock().unwrap();
        matches!(&seen[..], [LeaderEvent::Ended(error)] if error.kind() == ErrorKind::Shutdown)
    })
    .await;
}

/// Stops when it has what it wants.
struct Content(Arc<Mutex<Vec<i64>>>);

impl Actor for Content {
    type Context = Context<Self>;
}

impl Handler<LockEvent> for Content {
    type Result = ();

    fn handle(&mut self, event: LockEvent, ctx: &mut Self::Context) {
        if let LockEvent::Acquired(held) = event {
            self.0.lock().unwrap().push(held.token());
        }
        ctx.stop();
    }
}

#[actix::test]
async fn the_lock_of_an_actor_that_has_ended_is_given_back() {
    let (_cluster, etcd) = cluster_and_client().await;
    let session = etcd.session(LONG).await.unwrap();
    let tokens = Arc::default();
    let content = Content(Arc::clone(&tokens)).start();
    let _claim = session.mutex("l").lock().deliver_to(content.recipient());
    until("the actor has the lock", || {
        tokens.lock().unwrap().len() == 1
    })
    .await;
    let other = etcd.session(LONG).await.unwrap();
    let guard = other.mutex("l").lock_within(20 * SECOND).await.unwrap();
    assert!(guard.token() > tokens.lock().unwrap()[0]);
    guard.unlock().await.unwrap();
}

#[actix::test]
async fn an_actor_is_a_candidate_and_others_see_it_lead() {
    let (_cluster, client) = cluster_and_client().await;
    let etcd = Etcd::new(client.clone()).start();
    let (seen, observer) = ear::<LeaderEvent>();
    etcd.do_send(leaders("e").deliver_to(observer));
    let session = client.session(LONG).await.unwrap();
    let (heard, candidate) = ear::<CandidateEvent>();
    let claim = session.election("e").campaign("me").deliver_to(candidate);
    until("it leads, and is seen to", || {
        let (heard, seen) = (heard.lock().unwrap(), seen.lock().unwrap());
        matches!(heard[..], [CandidateEvent::Elected(_)])
            && matches!(seen.last(), Some(LeaderEvent::Leads(leader)) if leader.value == "me")
    })
    .await;
    claim.release().await;
    until("it has resigned, and nobody leads", || {
        let (heard, seen) = (heard.lock().unwrap(), seen.lock().unwrap());
        matches!(
            heard[..],
            [CandidateEvent::Elected(_), CandidateEvent::Resigned]
        ) && matches!(seen.last(), Some(LeaderEvent::NoLeader))
    })
    .await;
    client.shutdown().await;
    until("the end is told", || {
        let seen = seen.lock().unwrap();
        matches!(seen.last(), Some(LeaderEvent::Ended(error)) if error.kind() == ErrorKind::Shutdown)
    })
    .await;
}

#[actix::test]
async fn an_actor_is_told_what_happens_to_a_session() {
    let (_cluster, etcd) = cluster_and_client().await;
    let session = etcd.session(LONG).heal().await.unwrap();
    let (heard, recipient) = ear::<SessionEvent>();
    let _told = session.deliver_to(recipient);
    let before = session.lease().unwrap();
    etcd.revoke(before).await.unwrap();
    // Long before its next keepalive.
    assert!(etcd.keep_alive_once(before).await.is_err());
    until("it is told of the loss and the healing", || {
        let heard = heard.lock().unwrap();
        matches!(
            &heard[..],
            [SessionEvent::Healing(LeaseLost::Revoked), SessionEvent::Healed { lease, .. }]
                if Some(*lease) == session.lease()
        )
    })
    .await;
    etcd.shutdown().await;
    until("it is told of the end", || {
        let heard = heard.lock().unwrap();
        heard.last() == Some(&SessionEvent::Lost(LeaseLost::Shutdown))
    })
    .await;
}

struct Only;

impl Actor for Only {
    type Context = Context<Self>;
}

#[actix::test]
async fn an_actor_is_told_where_a_singleton_runs() {
    let (_cluster, etcd) = cluster_and_client().await;
    let first = etcd.singleton("only").start(|_| Only).unwrap();
    first.running().await.unwrap();
    let second = etcd.singleton("only").start(|_| Only).unwrap();
    let (heard, recipient) = ear::<SingletonEvent<Only>>();
    let _told = second.deliver_to(recipient);
    until("it runs elsewhere", || {
        matches!(heard.lock().unwrap()[..], [SingletonEvent::RunsElsewhere])
    })
    .await;
    first.stop().await;
    until("it runs here", || {
        matches!(
            heard.lock().unwrap()[..],
            [SingletonEvent::RunsElsewhere, SingletonEvent::RunsHere(_)]
        )
    })
    .await;
    second.stop().await;
}

#[actix::test]
async fn an_actor_that_is_restarted_goes_on_hearing_of_a_service() {
    /// Stops at everything it hears; its supervisor starts it again.
    struct Restless {
        heard: Arc<Mutex<Vec<usize>>>,
        restarts: Arc<Mutex<usize>>,
    }

    impl Actor for Restless {
        type Context = Context<Self>;
    }

    impl actix::Supervised for Restless {
        fn restarting(&mut self, _: &mut Self::Context) {
            *self.restarts.lock().unwrap() += 1;
        }
    }

    impl Handler<DiscoveryEvent> for Restless {
        type Result = ();

        fn handle(&mut self, event: DiscoveryEvent, ctx: &mut Self::Context) {
            if let DiscoveryEvent::Changed(change) = event {
                self.heard.lock().unwrap().push(change.instances.len());
            }
            ctx.stop();
        }
    }

    let (_cluster, etcd) = cluster_and_client().await;
    let (heard, restarts) = (Arc::default(), Arc::default());
    let restless = Restless {
        heard: Arc::clone(&heard),
        restarts: Arc::clone(&restarts),
    };
    let restless = actix::Supervisor::start(move |_| restless);
    let told = etcd.discover("web").deliver_to(restless.recipient()).await;
    let mut registered = Vec::new();
    for n in 0..4 {
        until("it has heard of all so far", || {
            heard.lock().unwrap().last() == Some(&n)
        })
        .await;
        let instance = etcd.register("web", format!("{n}")).ttl(LONG);
        registered.push(instance.await.unwrap());
    }
    assert!(*restarts.lock().unwrap() >= 3);
    drop(told);
}
