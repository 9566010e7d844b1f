//! Elections on a real cluster: one leader at a time, and observers that miss no leader.

use std::time::Duration;

use actix::{Actor, Context, Handler};
use actix_etcd::{
    Client, ErrorKind,
    kv::put,
    recipes::{
        election::{LeaderEvent, Leaders, OwnershipLost},
        session::Session,
    },
};
use testbed::{Cluster, Fault};
use tokio::{sync::mpsc, time::timeout};

use crate::support::{
    connected_cluster::{StartWithClient, connect},
    wait::{hold, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

async fn session(etcd: &Client) -> Session {
    etcd.session(LONG).await.unwrap()
}

async fn candidate_count(etcd: &Client) -> i64 {
    etcd.get("e/").prefix().await.unwrap().count
}

async fn until_candidates(etcd: &Client, count: i64) {
    until_async(&format!("there are {count} candidates"), async || {
        candidate_count(etcd).await == count
    })
    .await;
}

/// Returns the value of the leader, or an empty text without a leader.
fn leader_value(event: &LeaderEvent) -> String {
    match event {
        LeaderEvent::Leads(leader) => String::from_utf8(leader.value.to_vec()).unwrap(),
        LeaderEvent::NoLeader => String::new(),
        other => panic!("the observation ended: {other:?}"),
    }
}

async fn next_leader(leaders: &mut Leaders) -> String {
    let event = timeout(20 * SECOND, leaders.next()).await;
    let event = event.expect("a leader event arrives within 20 s");
    leader_value(&event.expect("the observation goes on"))
}

#[tokio::test]
async fn next_candidate_leads_when_leader_resigns() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    assert_eq!(etcd.leader("e").await.unwrap(), None);
    let first = a.election("e").campaign("a").await.unwrap();
    assert_eq!(first.key(), &format!("e/{:x}", a.lease().unwrap()));
    let election = b.election("e");
    let second = tokio::spawn(async move { election.campaign("b").await });
    until_candidates(&etcd, 2).await;
    let leader = b.election("e").leader().await.unwrap().unwrap();
    assert_eq!((leader.value, leader.token), ("a".into(), first.token()));
    first.proclaim("a2").await.unwrap();
    let leader = etcd.leader("e").await.unwrap().unwrap();
    assert_eq!((leader.value, leader.token), ("a2".into(), first.token()));
    assert!(!second.is_finished());
    first.resign().await.unwrap();
    let second = timeout(5 * SECOND, second).await.unwrap().unwrap().unwrap();
    let leader = etcd.leader("e").await.unwrap().unwrap();
    assert_eq!((leader.value, leader.token), ("b".into(), second.token()));
    let write = second.txn().then([put("work", "b")]).await.unwrap();
    assert!(write.succeeded);
}

#[tokio::test]
async fn observer_receives_leaders_proclamations_and_vacancies() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let mut leaders = a.election("e").observe();
    assert_eq!(next_leader(&mut leaders).await, "");
    let first = a.election("e").campaign("a").await.unwrap();
    assert_eq!(next_leader(&mut leaders).await, "a");
    first.proclaim("a2").await.unwrap();
    assert_eq!(next_leader(&mut leaders).await, "a2");
    first.resign().await.unwrap();
    assert_eq!(next_leader(&mut leaders).await, "");
    let first = a.election("e").campaign("a3").await.unwrap();
    let election = b.election("e");
    let second = tokio::spawn(async move { election.campaign("b").await });
    until_candidates(&etcd, 2).await;
    drop(first);
    let second = second.await.unwrap().unwrap();
    assert_eq!(next_leader(&mut leaders).await, "a3");
    assert_eq!(next_leader(&mut leaders).await, "b");
    // The leader loses its lease without resigning.
    etcd.revoke(second.lease()).await.unwrap();
    assert_eq!(next_leader(&mut leaders).await, "");
}

#[tokio::test]
async fn cut_off_observer_misses_no_leader() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = connect(cluster.direct_endpoints()).await;
    let session = session(&direct).await;
    let mut leaders = etcd.leaders("e");
    assert_eq!(next_leader(&mut leaders).await, "");
    for round in 0..12 {
        match round % 6 {
            1 => cluster.member(0).client_link().set(Fault::Freeze),
            3 => cluster.member(0).client_link().reset_now(),
            5 => cluster.heal(),
            _ => {}
        }
        let value = round.to_string();
        let leader = session.election("e").campaign(value).await.unwrap();
        leader.resign().await.unwrap();
    }
    cluster.heal();
    for round in 0..12 {
        assert_eq!(next_leader(&mut leaders).await, round.to_string());
        assert_eq!(next_leader(&mut leaders).await, "");
    }
}

#[tokio::test]
async fn observer_resumes_at_current_leader_after_compaction() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = connect(cluster.direct_endpoints()).await;
    let session = session(&direct).await;
    let first = session.election("e").campaign("old").await.unwrap();
    let mut leaders = etcd.leaders("e");
    assert_eq!(next_leader(&mut leaders).await, "old");
    let link = cluster.member(0).client_link().clone();
    link.set(Fault::Refuse);
    // Otherwise the observer could still receive that there is no leader.
    until("the connections are closed", || link.connections() == 0).await;
    first.resign().await.unwrap();
    let second = session.election("e").campaign("new").await.unwrap();
    let last = direct.put("other", "1").await.unwrap().header.revision;
    direct.compact(last).await.unwrap();
    cluster.heal();
    assert_eq!(next_leader(&mut leaders).await, "new");
    second.resign().await.unwrap();
    assert_eq!(next_leader(&mut leaders).await, "");
}

#[tokio::test]
async fn dropped_or_failed_campaign_leaves_no_candidate() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (
        session(&etcd).await,
        etcd.session(2 * SECOND).await.unwrap(),
    );
    let leader = a.election("e").campaign("a").await.unwrap();
    let election = b.election("e");
    for step in 0..15 {
        let cancelled = timeout(Duration::from_millis(step), election.campaign("b"));
        assert!(cancelled.await.is_err());
    }
    until_candidates(&etcd, 1).await;
    hold(SECOND / 5).await;
    assert_eq!(candidate_count(&etcd).await, 1);
    let campaign = tokio::spawn(async move { election.campaign("b").await });
    until_candidates(&etcd, 2).await;
    etcd.revoke(b.lease().unwrap()).await.unwrap();
    let ended = timeout(5 * SECOND, campaign).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::SessionLost);
    assert_eq!(candidate_count(&etcd).await, 1);
    drop(leader);
}

#[tokio::test]
async fn campaign_interrupted_by_compaction_leaves_no_candidate() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = connect(cluster.direct_endpoints()).await;
    let (a, b) = (session(&direct).await, session(&etcd).await);
    let leader = a.election("e").campaign("a").await.unwrap();
    let election = b.election("e");
    let campaign = tokio::spawn(async move { election.campaign("b").await });
    until_candidates(&direct, 2).await;
    cluster.member(0).client_link().set(Fault::Refuse);
    cluster.member(0).client_link().reset_now();
    // The candidate is cut off while its own key is deleted and the revision compacted.
    let own = format!("e/{:x}", b.lease().unwrap());
    direct.delete(own).await.unwrap();
    let last = direct.put("other", "1").await.unwrap().header.revision;
    direct.compact(last).await.unwrap();
    cluster.heal();
    leader.resign().await.unwrap();
    let failed = timeout(20 * SECOND, campaign).await.unwrap().unwrap();
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::LockLost);
    until_candidates(&etcd, 0).await;
    let next = b.election("e").campaign("b").await.unwrap();
    next.resign().await.unwrap();
}

#[tokio::test]
async fn detached_leadership_is_resumed() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (former, next) = (session(&etcd).await, session(&etcd).await);
    let old = former.election("e").campaign("old").await.unwrap();
    let (key, token) = (old.key().clone(), old.token());
    // As a process that ends without giving up its leadership.
    let detached = former.detach().unwrap();
    let election = next.election("e");
    let new = election.resume(&key, token, "new").await.unwrap().unwrap();
    assert!(election.is_leader());
    drop(old);
    etcd.revoke(detached).await.unwrap();
    let leader = etcd.leader("e").await.unwrap().unwrap();
    assert_eq!((leader.value, leader.token), ("new".into(), token));
    new.resign().await.unwrap();
}

#[tokio::test]
async fn resumed_leadership_is_lost_by_former_session() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (former, waiting) = (session(&etcd).await, session(&etcd).await);
    let old = former.election("e").campaign("old").await.unwrap();
    let election = waiting.election("e");
    let other = tokio::spawn(async move { election.campaign("other").await });
    until_candidates(&etcd, 2).await;
    let mut leaders = etcd.leaders("e");
    assert_eq!(next_leader(&mut leaders).await, "old");

    let next = session(&etcd).await;
    let lost = old.lost();
    let (key, token) = (old.key().clone(), old.token());
    let new = next.election("e").resume(&key, token, "new").await.unwrap();
    let new = new.unwrap();
    assert_eq!((new.key(), new.token()), (&key, token));
    assert_eq!(next_leader(&mut leaders).await, "new", "without a vacancy");
    assert_eq!(
        timeout(5 * SECOND, lost).await.unwrap(),
        OwnershipLost::Taken
    );
    let rejected = old.proclaim("old again").await.unwrap_err();
    assert_eq!(rejected.kind(), ErrorKind::LockLost);
    // Dropping the old leadership and closing its session must not delete the resumed key.
    drop(old);
    former.close().await.unwrap();
    new.proclaim("new2").await.unwrap();
    assert_eq!(next_leader(&mut leaders).await, "new2");
    new.resign().await.unwrap();
    other.await.unwrap().unwrap().resign().await.unwrap();
    let resumed = next
        .election("e")
        .resume(&key, token, "late")
        .await
        .unwrap();
    assert!(resumed.is_none());
    assert_eq!(candidate_count(&etcd).await, 0);
}

#[tokio::test]
async fn unknown_leadership_is_not_resumed() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let election = session.election("e");
    let before = etcd.put("other/1", "v").await.unwrap().header.revision;
    for (key, token) in [("e/1", 0), ("e/1", -1), ("other/1", before)] {
        let rejected = election.resume(key, token, "v").await.unwrap_err();
        assert_eq!(
            rejected.kind(),
            ErrorKind::InvalidArgument,
            "{key}, {token}"
        );
    }
    assert!(election.resume("e/1", 1, "v").await.unwrap().is_none());
    let after = etcd.get("e/").prefix().await.unwrap();
    assert_eq!((after.count, after.header.revision), (0, before));
}

#[tokio::test]
async fn resume_after_revoke_fails_with_session_lost() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (former, next) = (session(&etcd).await, session(&etcd).await);
    let leadership = former.election("e").campaign("v").await.unwrap();
    let election = next.election("e");
    etcd.revoke(next.lease().unwrap()).await.unwrap();
    let resume = election.resume(leadership.key(), leadership.token(), "v");
    assert_eq!(resume.await.unwrap_err().kind(), ErrorKind::SessionLost);
    leadership.resign().await.unwrap();
}

struct LeaderRecorder(mpsc::UnboundedSender<String>);

impl Actor for LeaderRecorder {
    type Context = Context<Self>;
}

impl Handler<LeaderEvent> for LeaderRecorder {
    type Result = ();

    fn handle(&mut self, event: LeaderEvent, _: &mut Self::Context) {
        let _ = self.0.send(leader_value(&event));
    }
}

#[actix::test]
async fn actor_receives_leaders_until_handle_is_dropped() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (sender, mut received) = mpsc::unbounded_channel();
    let recorder = LeaderRecorder(sender).start();
    let observation = etcd.leaders("e").deliver_to(recorder.clone().recipient());
    let session = session(&etcd).await;
    assert_eq!(received.recv().await.unwrap(), "");
    let leader = session.election("e").campaign("a").await.unwrap();
    assert_eq!(received.recv().await.unwrap(), "a");
    drop(observation);
    drop(recorder);
    assert_eq!(received.recv().await, None, "the actor is still referenced");
    leader.resign().await.unwrap();
}
