//! Keys under the name of a lock or an election that no contender has put. The Go client waits for them, so they are
//! reported.

use std::time::Duration;

use actix::{Actor, Context};
use actix_etcd::{
    Client, Error, ErrorKind,
    recipes::{
        election::{CandidateEvent, LeaderEvent},
        mutex::LockEvent,
        session::Session,
    },
};
use testbed::Cluster;
use tokio::time::timeout;

use crate::support::{
    connected_cluster::StartWithClient,
    message_recorder::record_messages,
    wait::{TEST_TIMEOUT, until, until_async},
};

/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

struct Idle;

impl Actor for Idle {
    type Context = Context<Self>;
}

async fn session(etcd: &Client) -> Session {
    etcd.session(LONG).await.unwrap()
}

async fn keys(etcd: &Client, prefix: &str) -> Vec<String> {
    let found = etcd.get(prefix).prefix().await.unwrap();
    let key = |kv: &actix_etcd::kv::KeyValue| String::from_utf8_lossy(&kv.key).into_owned();
    found.kvs.iter().map(key).collect()
}

#[tokio::test]
async fn data_under_lock_name_is_reported() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("critical/count", "1").await.unwrap();
    let session = session(&etcd).await;
    let mutex = session.mutex("critical");
    let blocked = mutex.lock().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    assert!(blocked.to_string().contains("critical/count"), "{blocked}");
    assert_eq!(keys(&etcd, "critical/").await, ["critical/count"]);
    let blocked = mutex.try_lock().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    etcd.delete("critical/count").await.unwrap();
    let guard = mutex.try_lock().await.unwrap().unwrap();
    // A later key does not block the lock.
    etcd.put("critical/count", "2").await.unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn blocking_key_is_found_behind_holder() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let guard = a.mutex("l").lock().await.unwrap();
    etcd.put("l/data", "").await.unwrap();
    assert!(b.mutex("l").try_lock().await.unwrap().is_none());
    let blocked = b.mutex("l").lock().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn blocking_key_is_found_behind_many_contenders() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let contenders = etcd.lease(LONG).await.unwrap();
    for number in 0..40 {
        let key = format!("l/{number}");
        etcd.put(key, "").lease(&contenders).await.unwrap();
    }
    etcd.put("l/data", "").await.unwrap();
    let session = session(&etcd).await;
    let mutex = session.mutex("l");
    let blocked = timeout(TEST_TIMEOUT, mutex.lock().into_future()).await;
    let blocked = blocked.expect("the lock waits").unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    assert!(blocked.to_string().contains("l/data"), "{blocked}");
}

#[tokio::test]
async fn blocking_key_is_found_when_contender_leaves() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let contenders = etcd.lease(LONG).await.unwrap();
    let contend = async |number: usize| {
        let put = etcd.put(format!("l/{number}"), "");
        put.lease(&contenders).await.unwrap();
    };
    for number in 0..40 {
        contend(number).await;
    }
    etcd.put("l/data", "").await.unwrap();
    // A contender that waits for the data, as the Go client does.
    contend(40).await;
    let session = session(&etcd).await;
    let mutex = session.mutex("l");
    let lock = tokio::spawn(mutex.lock().into_future());
    until_async("the lock is requested", async || {
        keys(&etcd, "l/").await.len() == 43
    })
    .await;
    etcd.delete("l/40").await.unwrap();
    let blocked = timeout(TEST_TIMEOUT, lock).await.expect("the lock waits");
    let blocked = blocked.unwrap().unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
}

#[tokio::test]
async fn nested_lock_is_reported() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let inner = session.mutex("l/nested").lock().await.unwrap();
    let blocked = session.mutex("l").lock().await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    assert!(blocked.to_string().contains("l/nested/"), "{blocked}");
    inner.unlock().await.unwrap();
    session
        .mutex("l")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

#[tokio::test]
async fn data_under_election_name_never_leads() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("e/count", "1").await.unwrap();
    let session = session(&etcd).await;
    let election = session.election("e");
    let blocked = election.campaign("v").await.unwrap_err();
    assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
    assert_eq!(keys(&etcd, "e/").await, ["e/count"]);
    assert_eq!(etcd.leader("e").await.unwrap(), None);
    let mut leaders = election.observe();
    let first = leaders.next().await.unwrap();
    assert!(matches!(first, LeaderEvent::NoLeader), "{first:?}");
    etcd.delete("e/count").await.unwrap();
    let leadership = election.campaign("v").await.unwrap();
    etcd.put("e/count", "2").await.unwrap();
    let LeaderEvent::Leads(leader) = leaders.next().await.unwrap() else {
        panic!("no leader is observed");
    };
    assert_eq!(leader.token, leadership.token());
    assert_eq!(etcd.leader("e").await.unwrap(), Some(leader));
}

#[actix::test]
async fn actor_receives_blocked_lock_as_failure() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("l/count", "1").await.unwrap();
    let session = session(&etcd).await;
    let (lock_events, recipient) = record_messages();
    let _claim = session.mutex("l").lock().deliver_to(recipient);
    let is_blocked = |error: &Error| error.kind() == ErrorKind::LockBlocked;
    until("the lock has failed", || {
        let events = lock_events.lock().unwrap();
        matches!(&events[..], [LockEvent::Failed(error)] if is_blocked(error))
    })
    .await;
    let (candidate_events, recipient) = record_messages();
    let _claim = session.election("l").campaign("v").deliver_to(recipient);
    until("the campaign has failed", || {
        let events = candidate_events.lock().unwrap();
        matches!(&events[..], [CandidateEvent::Failed(error)] if is_blocked(error))
    })
    .await;
    until_async("no contender is left", async || {
        keys(&etcd, "l/").await == ["l/count"]
    })
    .await;
}

#[actix::test]
async fn names_of_slashes_are_refused() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    for name in ["", "/", "//"] {
        let refused = [
            session.mutex(name).lock().await.unwrap_err(),
            session.mutex(name).try_lock().await.unwrap_err(),
            session.election(name).campaign("v").await.unwrap_err(),
            etcd.leader(name).await.unwrap_err(),
            etcd.mutex(name).await.unwrap_err(),
            etcd.election(name).await.unwrap_err(),
            etcd.singleton(name).start(|_| Idle).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name:?}");
        }
        let ended = etcd.leaders(name).next().await.unwrap();
        assert!(matches!(ended, LeaderEvent::Ended(_)), "{ended:?}");
    }
    assert!(keys(&etcd, "/").await.is_empty());
    for name in ["/l", "l/", "/l/m/", "\0", " "] {
        let guard = session.mutex(name).lock().await.unwrap();
        guard.unlock().await.unwrap();
    }
}
