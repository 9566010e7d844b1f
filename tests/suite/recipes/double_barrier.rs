//! Double barriers on a real cluster: all participants begin together and end together, round after round.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_etcd::{
    Client, ErrorKind,
    recipes::{
        double_barrier::{DoubleBarrier, ParticipantEvent, Participation},
        session::Session,
    },
};
use testbed::{Cluster, Fault};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use crate::support::{
    connected_cluster::StartWithClient,
    lock_waiters::{key_names, spawn_in_queue, until_key_count},
    message_recorder::record_messages,
    wait::{TEST_TIMEOUT, hold, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

type Entering = JoinHandle<actix_etcd::Result<Participation>>;

async fn session(etcd: &Client) -> Session {
    etcd.session(LONG).await.unwrap()
}

async fn spawn_enter(etcd: &Client, barrier: &DoubleBarrier) -> Entering {
    spawn_in_queue(etcd, "d/waiters/", barrier.enter()).await
}

async fn entered(entering: Entering) -> Participation {
    timeout(TEST_TIMEOUT, entering)
        .await
        .unwrap()
        .unwrap()
        .unwrap()
}

async fn leave_all(inside: impl IntoIterator<Item = Participation>) {
    let mut leaving = JoinSet::new();
    for participation in inside {
        leaving.spawn(participation.leave());
    }
    for left in timeout(TEST_TIMEOUT, leaving.join_all()).await.unwrap() {
        left.unwrap();
    }
}

#[tokio::test]
async fn participants_enter_and_leave_together() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let (of_a, of_b) = (a.double_barrier("d", 3), b.double_barrier("d", 3));
    let first = spawn_enter(&etcd, &of_a).await;
    let second = spawn_enter(&etcd, &of_a).await;
    hold(SECOND / 10).await;
    assert!(!first.is_finished() && !second.is_finished());
    let third = of_b.enter().await.unwrap();
    let (first, second) = (entered(first).await, entered(second).await);
    let (of_a_lease, of_b_lease) = (a.lease().unwrap(), b.lease().unwrap());
    let mut expected = vec![
        "d/ready".to_owned(),
        format!("d/waiters/{of_a_lease:x}"),
        format!("d/waiters/{of_a_lease:x}-1"),
        format!("d/waiters/{of_b_lease:x}"),
    ];
    expected.sort();
    assert_eq!(key_names(&etcd, "d/").await, expected);
    assert!(third.txn().await.unwrap().succeeded);
    let first = tokio::spawn(first.leave());
    let third = tokio::spawn(third.leave());
    until_key_count(&etcd, "d/waiters/", 1).await;
    hold(SECOND / 10).await;
    assert!(!first.is_finished() && !third.is_finished());
    second.leave().await.unwrap();
    timeout(TEST_TIMEOUT, first)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    timeout(TEST_TIMEOUT, third)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    until_key_count(&etcd, "d/", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barrier_is_used_round_after_round() {
    const PARTICIPANTS: usize = 4;
    const ROUNDS: usize = 10;
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let rounds: Arc<[_; ROUNDS]> = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..PARTICIPANTS {
        let session = if task % 2 == 0 { &a } else { &b };
        let barrier = session.double_barrier("d", 4);
        let rounds = rounds.clone();
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let inside = barrier.enter().await.unwrap();
                rounds[round].fetch_add(1, Ordering::SeqCst);
                // Everybody has left the round before.
                if round > 0 {
                    assert_eq!(rounds[round - 1].load(Ordering::SeqCst), 2 * PARTICIPANTS);
                }
                rounds[round].fetch_add(1, Ordering::SeqCst);
                inside.leave().await.unwrap();
                assert_eq!(rounds[round].load(Ordering::SeqCst), 2 * PARTICIPANTS);
            }
        });
    }
    timeout(TEST_TIMEOUT, tasks.join_all()).await.unwrap();
    until_key_count(&etcd, "d/", 0).await;
}

#[tokio::test]
async fn late_participant_is_refused_until_round_ends() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let barrier = session.double_barrier("d", 2);
    let first = spawn_enter(&etcd, &barrier).await;
    let second = barrier.enter().await.unwrap();
    let first = entered(first).await;
    let full = barrier.enter().await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::BarrierFull);
    until_key_count(&etcd, "d/waiters/", 2).await;
    let left = tokio::spawn(first.leave());
    until_key_count(&etcd, "d/waiters/", 1).await;
    // There is room, but the round has not ended.
    let full = barrier.enter().await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::BarrierFull);
    drop(second);
    timeout(TEST_TIMEOUT, left).await.unwrap().unwrap().unwrap();
    let first = spawn_enter(&etcd, &barrier).await;
    let second = timeout(TEST_TIMEOUT, barrier.enter().into_future())
        .await
        .unwrap()
        .unwrap();
    leave_all([entered(first).await, second]).await;
    until_key_count(&etcd, "d/", 0).await;
}

#[tokio::test]
async fn ready_key_of_dead_round_is_ignored() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let barrier = a.double_barrier("d", 2);
    let first = spawn_enter(&etcd, &barrier).await;
    let inside = (barrier.enter().await.unwrap(), entered(first).await);
    // Both die inside.
    a.close().await.unwrap();
    drop(inside);
    until_async("only the ready key is left", async || {
        key_names(&etcd, "d/").await == ["d/ready"]
    })
    .await;
    let barrier = b.double_barrier("d", 2);
    let first = spawn_enter(&etcd, &barrier).await;
    hold(SECOND / 10).await;
    assert!(!first.is_finished(), "the participant entered alone");
    let second = barrier.enter().await.unwrap();
    leave_all([entered(first).await, second]).await;
    until_key_count(&etcd, "d/", 0).await;
}

#[tokio::test]
async fn dead_participants_count_neither_before_nor_inside() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (a, b) = (session(&etcd).await, session(&etcd).await);
    let (of_a, of_b) = (a.double_barrier("d", 2), b.double_barrier("d", 2));
    let dead = spawn_enter(&etcd, &of_a).await;
    etcd.revoke(a.lease().unwrap()).await.unwrap();
    let dead = timeout(TEST_TIMEOUT, dead)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(dead.kind(), ErrorKind::SessionLost | ErrorKind::LockLost),
        "{dead}"
    );
    let first = spawn_enter(&etcd, &of_b).await;
    hold(SECOND / 10).await;
    assert!(!first.is_finished(), "a dead participant counts");
    let c = session(&etcd).await;
    let second = c.double_barrier("d", 2).enter().await.unwrap();
    let leaving = tokio::spawn(entered(first).await.leave());
    until_key_count(&etcd, "d/waiters/", 1).await;
    assert!(!leaving.is_finished());
    etcd.revoke(c.lease().unwrap()).await.unwrap();
    timeout(TEST_TIMEOUT, leaving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let lost = second.leave().await.unwrap_err();
    assert!(
        matches!(lost.kind(), ErrorKind::SessionLost | ErrorKind::LockLost),
        "{lost}"
    );
    until_key_count(&etcd, "d/", 0).await;
}

#[tokio::test]
async fn withdrawn_participants_leave_no_key() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let barrier = session.double_barrier("d", 2);
    for step in 0..15 {
        let time = Duration::from_millis(step);
        assert!(timeout(time, barrier.enter().into_future()).await.is_err());
    }
    let late = barrier.enter().within(SECOND / 20).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    until_key_count(&etcd, "d/", 0).await;
    let refused = [
        session.double_barrier("d", 0).enter().await.unwrap_err(),
        session.double_barrier("/", 1).enter().await.unwrap_err(),
        etcd.double_barrier("d", 0).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    // A single participant waits for nobody.
    session
        .double_barrier("d", 1)
        .enter()
        .await
        .unwrap()
        .leave()
        .await
        .unwrap();
    until_key_count(&etcd, "d/", 0).await;
}

/// Puts and deletes the keys of the other participant as the Go client does.
#[tokio::test]
async fn barrier_is_shared_with_go_client() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let barrier = session.double_barrier("d", 2);
    let go = etcd.lease(LONG).await.unwrap();
    let key = "d/waiters/1718000000000000000";
    // The Go client enters first, and waits for the ready key.
    etcd.put(key, "").lease(&go).await.unwrap();
    let ours = barrier.enter().await.unwrap();
    let ready = etcd.get("d/ready").await.unwrap();
    let ready = ready.first().unwrap();
    assert!(ready.mod_revision > ours.token() && ready.lease == 0);
    let leaving = tokio::spawn(ours.leave());
    until_key_count(&etcd, "d/waiters/", 1).await;
    assert!(!leaving.is_finished());
    // The last one deletes the ready key, then its own.
    etcd.delete("d/ready").await.unwrap();
    etcd.delete(key).await.unwrap();
    timeout(TEST_TIMEOUT, leaving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    until_key_count(&etcd, "d/", 0).await;
    // The Go client enters last, and puts the ready key.
    let ours = spawn_enter(&etcd, &barrier).await;
    etcd.put(key, "").lease(&go).await.unwrap();
    etcd.put("d/ready", "").await.unwrap();
    let leaving = tokio::spawn(entered(ours).await.leave());
    until_key_count(&etcd, "d/waiters/", 1).await;
    etcd.delete(key).await.unwrap();
    timeout(TEST_TIMEOUT, leaving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    until_key_count(&etcd, "d/", 0).await;
}

#[tokio::test]
async fn cut_off_participant_finds_completed_round() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    let (a, b) = (session(&etcd).await, session(&direct).await);
    let waiting = spawn_enter(&direct, &a.double_barrier("d", 2)).await;
    cluster.member(0).client_link().set(Fault::Refuse);
    cluster.member(0).client_link().reset_now();
    let second = b.double_barrier("d", 2).enter().await.unwrap();
    let last = direct.put("other", "1").await.unwrap().header.revision;
    direct.compact(last).await.unwrap();
    let leaving = tokio::spawn(second.leave());
    until_key_count(&direct, "d/waiters/", 1).await;
    cluster.heal();
    entered(waiting).await.leave().await.unwrap();
    timeout(TEST_TIMEOUT, leaving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    until_key_count(&direct, "d/", 0).await;
}

#[tokio::test]
async fn participant_of_owned_session_enters_again_with_new_lease() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let barrier = etcd.double_barrier("d", 2).ttl(2 * SECOND).await.unwrap();
    let waiting = spawn_enter(&etcd, &barrier).await;
    let found = etcd.get("d/waiters/").prefix().await.unwrap();
    let lost = found.first().unwrap().lease;
    etcd.revoke(lost).await.unwrap();
    until_async("the participant has entered again", async || {
        let found = etcd.get("d/waiters/").prefix().await.unwrap();
        found.first().is_some_and(|kv| kv.lease != lost)
    })
    .await;
    let second = barrier.enter().await.unwrap();
    leave_all([entered(waiting).await, second]).await;
    until_key_count(&etcd, "d/", 0).await;
}

#[actix::test]
async fn actors_take_part() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let session = session(&etcd).await;
    let barrier = session.double_barrier("d", 2);
    let (first_events, recipient) = record_messages::<ParticipantEvent>();
    let first = barrier.enter().deliver_to(recipient);
    until_key_count(&etcd, "d/waiters/", 1).await;
    let (second_events, recipient) = record_messages::<ParticipantEvent>();
    let second = barrier.enter().deliver_to(recipient);
    until("both actors have entered", || {
        let entered =
            |events: &Vec<ParticipantEvent>| matches!(events[..], [ParticipantEvent::Entered(_)]);
        entered(&first_events.lock().unwrap()) && entered(&second_events.lock().unwrap())
    })
    .await;
    let (late_events, recipient) = record_messages::<ParticipantEvent>();
    let _late = barrier.enter().deliver_to(recipient);
    until("the late actor is refused", || {
        matches!(
            &late_events.lock().unwrap()[..],
            [ParticipantEvent::Failed(error)] if error.kind() == ErrorKind::BarrierFull
        )
    })
    .await;
    let first = tokio::spawn(first.release());
    until_key_count(&etcd, "d/waiters/", 1).await;
    assert!(!first.is_finished());
    drop(second);
    timeout(TEST_TIMEOUT, first).await.unwrap().unwrap();
    until("both actors have left", || {
        let left = |events: &Vec<ParticipantEvent>| {
            matches!(
                events[..],
                [ParticipantEvent::Entered(_), ParticipantEvent::Left]
            )
        };
        left(&first_events.lock().unwrap()) && left(&second_events.lock().unwrap())
    })
    .await;
    until_key_count(&etcd, "d/", 0).await;
}
