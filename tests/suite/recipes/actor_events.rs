//! Events of locks, elections, sessions, singletons and discovery, delivered to actors as messages.

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

use crate::support::{
    connected_cluster::StartWithClient,
    message_recorder::{Received, record_messages},
    wait::{until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

/// Returns a text such as `acquired, lost Taken`.
fn describe_lock_events(events: &Received<LockEvent>) -> String {
    let describe = |event: &LockEvent| match event {
        LockEvent::Acquired(_) => "acquired".to_owned(),
        LockEvent::Lost(loss) => format!("lost {loss:?}"),
        LockEvent::Released => "released".to_owned(),
        LockEvent::Failed(error) => format!("failed {:?}", error.kind()),
        _ => "?".to_owned(),
    };
    let events = events.lock().unwrap();
    let descriptions: Vec<_> = events.iter().map(describe).collect();
    descriptions.join(", ")
}

async fn until_lock_events(events: &Received<LockEvent>, expected: &str) {
    until(&format!("the actor has received: {expected}"), || {
        describe_lock_events(events) == expected
    })
    .await;
}

#[actix::test]
async fn actors_hold_a_lock_one_at_a_time() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(LONG).await.unwrap();
    let other = etcd.session(LONG).await.unwrap();
    let (first_events, first) = record_messages();
    let (second_events, second) = record_messages();
    let first_claim = session.mutex("l").lock().deliver_to(first);
    until_lock_events(&first_events, "acquired").await;
    let second_claim = other.mutex("l").lock().deliver_to(second);
    until_async("both are in the queue", async || {
        etcd.get("l/").prefix().await.unwrap().count == 2
    })
    .await;
    assert_eq!(describe_lock_events(&second_events), "");
    let LockEvent::Acquired(held) = first_events.lock().unwrap()[0].clone() else {
        unreachable!("the first event is checked above");
    };
    assert!(held.txn().await.unwrap().succeeded);
    first_claim.release().await;
    until_lock_events(&first_events, "acquired, released").await;
    until_lock_events(&second_events, "acquired").await;
    assert!(
        !held.txn().await.unwrap().succeeded,
        "a released lock still guards transactions"
    );
    drop(second_claim);
    until_lock_events(&second_events, "acquired, released").await;
    until_async("the lock is free", async || {
        etcd.get("l/").prefix().await.unwrap().count == 0
    })
    .await;
}

#[actix::test]
async fn actor_receives_reason_of_lost_lock() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let session = etcd.session(LONG).await.unwrap();
    let (taken, recipient) = record_messages();
    let _taken_claim = session.mutex("a").lock().deliver_to(recipient);
    until_lock_events(&taken, "acquired").await;
    direct.delete("a/").prefix().await.unwrap();
    until_lock_events(&taken, "acquired, lost Taken").await;

    let (revoked, recipient) = record_messages();
    let _revoked_claim = session.mutex("b").lock().deliver_to(recipient);
    until_lock_events(&revoked, "acquired").await;
    direct.revoke(session.lease().unwrap()).await.unwrap();
    until("the actor has received the loss of the session", || {
        let events = revoked.lock().unwrap();
        // The loss of the key or the loss of the lease may be seen first.
        matches!(
            events[..],
            [
                LockEvent::Acquired(_),
                LockEvent::Lost(OwnershipLost::Taken | OwnershipLost::Session(LeaseLost::Revoked))
            ]
        )
    })
    .await;
    until("the session is lost", || session.lease().is_none()).await;
    let (late, recipient) = record_messages();
    let _late_claim = session.mutex("c").lock().deliver_to(recipient);
    until_lock_events(&late, "failed SessionLost").await;

    let short = etcd.session(2 * SECOND).await.unwrap();
    let (cut_off, recipient) = record_messages();
    let _cut_off_claim = short.mutex("d").lock().deliver_to(recipient);
    until_lock_events(&cut_off, "acquired").await;
    let next = direct.session(LONG).await.unwrap();
    let mutex = next.mutex("d");
    cluster.member(0).client_link().set(Fault::Freeze);
    let _guard = mutex.lock().await.unwrap();
    until_lock_events(&cut_off, "acquired, lost AtRisk").await;
}

#[actix::test]
async fn released_claim_leaves_the_lock_queue() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(LONG).await.unwrap();
    let guard = session.mutex("l").lock().await.unwrap();
    let other = etcd.session(LONG).await.unwrap();
    let keys = async || etcd.get("l/").prefix().await.unwrap().count;
    let (events, recipient) = record_messages();
    let waiting = other.mutex("l").lock().deliver_to(recipient);
    until_async("the claim is in the queue", async || keys().await == 2).await;
    waiting.release().await;
    assert_eq!(keys().await, 1);
    until_lock_events(&events, "released").await;
    // The claim may be released before or after its key is created.
    for _ in 0..10 {
        let (events, recipient) = record_messages();
        other
            .mutex("l")
            .lock()
            .deliver_to(recipient)
            .release()
            .await;
        assert_eq!(keys().await, 1);
        until_lock_events(&events, "released").await;
    }
    // A second claim of the holding session waits locally and has no key in the queue.
    let (events, recipient) = record_messages();
    let second = session.mutex("l").lock().deliver_to(recipient);
    second.release().await;
    until_lock_events(&events, "released").await;
    guard.unlock().await.unwrap();
}

#[actix::test]
async fn claims_fail_after_client_shutdown() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(LONG).await.unwrap();
    let (mutex, election) = (session.mutex("l"), session.election("e"));
    etcd.clone().shutdown().await;
    let (lock_events, recipient) = record_messages();
    let claim = mutex.lock().deliver_to(recipient);
    until("the lock claim has failed", || {
        let events = lock_events.lock().unwrap();
        matches!(events[..], [LockEvent::Failed(_)])
    })
    .await;
    claim.release().await;
    let (candidate_events, recipient) = record_messages();
    let _claim = election.campaign("me").deliver_to(recipient);
    until("the campaign has failed", || {
        let events = candidate_events.lock().unwrap();
        matches!(events[..], [CandidateEvent::Failed(_)])
    })
    .await;
    let (leader_events, recipient) = record_messages();
    let _observation = etcd.leaders("e").deliver_to(recipient);
    until("the observation has ended", || {
        let events = leader_events.lock().unwrap();
        matches!(&events[..], [LeaderEvent::Ended(error)] if error.kind() == ErrorKind::Shutdown)
    })
    .await;
}

/// Records the fencing token of its lock, then stops.
struct StopsWhenLocked(Arc<Mutex<Vec<i64>>>);

impl Actor for StopsWhenLocked {
    type Context = Context<Self>;
}

impl Handler<LockEvent> for StopsWhenLocked {
    type Result = ();

    fn handle(&mut self, event: LockEvent, ctx: &mut Self::Context) {
        if let LockEvent::Acquired(held) = event {
            self.0.lock().unwrap().push(held.token());
        }
        ctx.stop();
    }
}

#[actix::test]
async fn stopped_actor_releases_its_lock() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(LONG).await.unwrap();
    let tokens = Arc::default();
    let actor = StopsWhenLocked(Arc::clone(&tokens)).start();
    let _claim = session.mutex("l").lock().deliver_to(actor.recipient());
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
async fn candidate_and_observer_receive_election_events() {
    let (_cluster, client) = Cluster::start_with_client(1).await;
    let etcd = Etcd::new(client.clone()).start();
    let (leader_events, observer) = record_messages::<LeaderEvent>();
    etcd.do_send(leaders("e").deliver_to(observer));
    let session = client.session(LONG).await.unwrap();
    let (candidate_events, candidate) = record_messages::<CandidateEvent>();
    let claim = session.election("e").campaign("me").deliver_to(candidate);
    until("the candidate is elected and observed", || {
        let candidate_events = candidate_events.lock().unwrap();
        let leader_events = leader_events.lock().unwrap();
        matches!(candidate_events[..], [CandidateEvent::Elected(_)])
            && matches!(leader_events.last(), Some(LeaderEvent::Leads(leader)) if leader.value == "me")
    })
    .await;
    claim.release().await;
    until("the candidate has resigned, and there is no leader", || {
        let candidate_events = candidate_events.lock().unwrap();
        let leader_events = leader_events.lock().unwrap();
        matches!(
            candidate_events[..],
            [CandidateEvent::Elected(_), CandidateEvent::Resigned]
        ) && matches!(leader_events.last(), Some(LeaderEvent::NoLeader))
    })
    .await;
    client.shutdown().await;
    until("the observation has ended", || {
        let events = leader_events.lock().unwrap();
        matches!(events.last(), Some(LeaderEvent::Ended(error)) if error.kind() == ErrorKind::Shutdown)
    })
    .await;
}

#[actix::test]
async fn actor_receives_session_events() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = etcd.session(LONG).heal().await.unwrap();
    let (events, recipient) = record_messages::<SessionEvent>();
    let _subscription = session.deliver_to(recipient);
    let before = session.lease().unwrap();
    etcd.revoke(before).await.unwrap();
    // Makes the client notice the loss long before the next keepalive.
    assert!(etcd.keep_alive_once(before).await.is_err());
    until("the loss and the new lease are received", || {
        let events = events.lock().unwrap();
        matches!(
            &events[..],
            [SessionEvent::Healing(LeaseLost::Revoked), SessionEvent::Healed { lease, .. }]
                if Some(*lease) == session.lease()
        )
    })
    .await;
    etcd.shutdown().await;
    until("the shutdown is received", || {
        let events = events.lock().unwrap();
        events.last() == Some(&SessionEvent::Lost(LeaseLost::Shutdown))
    })
    .await;
}

struct IdleActor;

impl Actor for IdleActor {
    type Context = Context<Self>;
}

#[actix::test]
async fn actor_receives_singleton_events() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let first = etcd.singleton("only").start(|_| IdleActor).unwrap();
    first.running().await.unwrap();
    let second = etcd.singleton("only").start(|_| IdleActor).unwrap();
    let (events, recipient) = record_messages::<SingletonEvent<IdleActor>>();
    let _subscription = second.deliver_to(recipient);
    until("the singleton runs elsewhere", || {
        matches!(events.lock().unwrap()[..], [SingletonEvent::RunsElsewhere])
    })
    .await;
    first.stop().await;
    until("the singleton runs here", || {
        matches!(
            events.lock().unwrap()[..],
            [SingletonEvent::RunsElsewhere, SingletonEvent::RunsHere(_)]
        )
    })
    .await;
    second.stop().await;
}

#[actix::test]
async fn restarted_actor_keeps_receiving_discovery_events() {
    /// Stops after every event, and is restarted by its supervisor.
    struct StopsOnEvent {
        instance_counts: Arc<Mutex<Vec<usize>>>,
        restarts: Arc<Mutex<usize>>,
    }

    impl Actor for StopsOnEvent {
        type Context = Context<Self>;
    }

    impl actix::Supervised for StopsOnEvent {
        fn restarting(&mut self, _: &mut Self::Context) {
            *self.restarts.lock().unwrap() += 1;
        }
    }

    impl Handler<DiscoveryEvent> for StopsOnEvent {
        type Result = ();

        fn handle(&mut self, event: DiscoveryEvent, ctx: &mut Self::Context) {
            if let DiscoveryEvent::Changed(change) = event {
                let mut counts = self.instance_counts.lock().unwrap();
                counts.push(change.instances.len());
            }
            ctx.stop();
        }
    }

    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (instance_counts, restarts) = (Arc::default(), Arc::default());
    let actor = StopsOnEvent {
        instance_counts: Arc::clone(&instance_counts),
        restarts: Arc::clone(&restarts),
    };
    let actor = actix::Supervisor::start(move |_| actor);
    let subscription = etcd.discover("web").deliver_to(actor.recipient()).await;
    let mut registered = Vec::new();
    for n in 0..4 {
        until("the actor has received all instances so far", || {
            instance_counts.lock().unwrap().last() == Some(&n)
        })
        .await;
        let instance = etcd.register("web", format!("{n}")).ttl(LONG);
        registered.push(instance.await.unwrap());
    }
    assert!(*restarts.lock().unwrap() >= 3);
    drop(subscription);
}
