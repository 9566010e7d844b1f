//! The state of a singleton on one node: when it starts, why it does not, and how its handles show and stop it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use actix::{Actor, Context};
use actix_etcd::{
    Client, ErrorKind,
    recipes::{
        election::Ownership,
        singleton::{Singleton, SingletonEvent, SingletonState},
    },
};
use testbed::{Cluster, Reply};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::{
    connected_cluster::StartWithClient,
    lease_server::KeepaliveResponse,
    message_recorder::record_messages,
    store_server::{ScriptedStore, TxnFate, puts},
    wait::{TEST_TIMEOUT, hold, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(6);

struct Idle;

impl Actor for Idle {
    type Context = Context<Self>;
}

async fn until_running(singleton: &Singleton<Idle>) {
    let running = timeout(TEST_TIMEOUT, singleton.running()).await;
    running.expect("the singleton does not start").unwrap();
}

#[actix::test]
async fn every_clone_shows_and_stops_singleton() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let singleton = etcd.singleton("only").start(|_| Idle).unwrap();
    let (clone, watching) = (singleton.clone(), singleton.clone());
    let states = tokio::spawn(async move {
        let mut states = watching.states();
        let mut seen = Vec::new();
        while let Some(state) = states.next().await {
            seen.push(format!("{state:?}"));
        }
        seen
    });
    until_running(&singleton).await;
    assert!(clone.is_running_here());
    drop(singleton);
    // The remaining clones keep it running.
    assert!(clone.is_running_here());
    assert!(matches!(clone.state(), SingletonState::Running));
    let addr = clone.addr().unwrap();
    let other = clone.clone();
    other.stop().await;
    assert!(!clone.is_running_here() && !addr.connected());
    assert!(matches!(clone.state(), SingletonState::Stopped));
    let error = clone.running().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown);
    let left = etcd.leases().await.unwrap().leases;
    assert!(left.is_empty(), "{left:?}");
    let seen = states.await.unwrap();
    assert_eq!(seen.last().unwrap(), "Stopped", "{seen:?}");
}

#[actix::test]
async fn stopped_candidate_leaves_queue_at_once() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let running = etcd.singleton("only").start(|_| Idle).unwrap();
    until_running(&running).await;
    let waiting = etcd.singleton("only").start(|_| Idle).unwrap();
    until_async("both nodes are candidates", async || {
        etcd.get("only/").prefix().await.unwrap().count == 2
    })
    .await;
    assert!(matches!(waiting.state(), SingletonState::Waiting));
    waiting.stop().await;
    assert_eq!(etcd.get("only/").prefix().await.unwrap().count, 1);
    assert_eq!(etcd.leases().await.unwrap().leases.len(), 1);
    assert!(running.is_running_here());
    running.stop().await;
}

#[actix::test]
async fn blocked_campaign_is_shown_and_repeated() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("only/data", "").await.unwrap();
    let singleton = etcd.singleton("only").start(|_| Idle).unwrap();
    let (events, recipient) = record_messages::<SingletonEvent<Idle>>();
    let _subscription = singleton.deliver_to(recipient);
    let is_blocked = || match singleton.state() {
        SingletonState::Failing(error) => {
            assert!(error.to_string().contains("only/data"), "{error}");
            error.kind() == ErrorKind::LockBlocked
        }
        _ => false,
    };
    until("the state shows why the campaign failed", is_blocked).await;
    until("an actor receives why the campaign failed", || {
        let events = events.lock().unwrap();
        matches!(events.last(), Some(SingletonEvent::CampaignFailed(_)))
    })
    .await;
    assert!(!singleton.is_running_here());
    etcd.delete("only/data").await.unwrap();
    until_running(&singleton).await;
    singleton.stop().await;
}

#[actix::test]
async fn unhealthy_node_gives_singleton_up() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let healthy = Arc::new(AtomicBool::new(true));
    let check = healthy.clone();
    let a = etcd
        .singleton("only")
        .healthy_while(SECOND / 20, move || check.load(Ordering::SeqCst));
    let a = a.start(|_| Idle).unwrap();
    until_running(&a).await;
    let b = etcd.singleton("only").start(|_| Idle).unwrap();
    healthy.store(false, Ordering::SeqCst);
    until_running(&b).await;
    assert!(!a.is_running_here());
    until("the state shows that the node is not healthy", || {
        matches!(a.state(), SingletonState::Unhealthy)
    })
    .await;
    // It is not a candidate meanwhile.
    assert_eq!(etcd.get("only/").prefix().await.unwrap().count, 1);
    healthy.store(true, Ordering::SeqCst);
    until("the node campaigns again", || {
        matches!(a.state(), SingletonState::Waiting)
    })
    .await;
    b.stop().await;
    until_running(&a).await;
    a.stop().await;
}

/// The node wins its election shortly before its lease would end, because the server answers neither its campaign nor
/// its keepalives before.
#[actix::test]
async fn nearly_expired_lease_does_not_start_singleton() {
    let (store, etcd): (ScriptedStore, Client) = ScriptedStore::start().await;
    let answers_keepalives = Arc::new(AtomicBool::new(false));
    let answers = answers_keepalives.clone();
    store.lease_server.on_keepalive_stream(move |_, served| {
        if answers.load(Ordering::SeqCst) {
            served
        } else {
            Reply::hang()
        }
    });
    let mut first_request = None;
    store.on_txn(move |request| {
        let first_request = *first_request.get_or_insert_with(Instant::now);
        // Three and a half of the six seconds of the lease have passed. The actor would be stopped at two.
        if puts(request) && first_request.elapsed() < 7 * SECOND / 2 {
            TxnFate::Delayed
        } else {
            TxnFate::Applied
        }
    });
    let times_at_start = Arc::<Mutex<Vec<Duration>>>::default();
    let times = times_at_start.clone();
    let make = move |leadership: Ownership| {
        times.lock().unwrap().push(leadership.remaining());
        Idle
    };
    let singleton = etcd.singleton("only").ttl(TTL).start(make).unwrap();
    until("the node has won", || !store.keys().is_empty()).await;
    hold(SECOND / 5).await;
    assert!(!singleton.is_running_here(), "started with too little time");
    let lease = store.keys()[0].lease;
    let renewed = KeepaliveResponse::Ttl(TTL.as_secs().cast_signed());
    store.lease_server.set_response(lease, renewed);
    answers_keepalives.store(true, Ordering::SeqCst);
    until_running(&singleton).await;
    let times = times_at_start.lock().unwrap().clone();
    assert!(times.iter().all(|time| *time >= TTL / 2), "{times:?}");
}
