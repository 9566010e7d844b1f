//! What etcd can't be made to do: keepalives that are counted, swallowed, refused.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use actix_etcd::{
    Client,
    lease::{LeaseEvent, LostReason},
    proto::{
        LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
        LeaseRevokeResponse,
    },
};
use prost::Message;
use testbed::{Reply, ScriptedServer};
use tokio_stream::StreamExt;

const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const SECOND: Duration = Duration::from_secs(1);

/// The keepalives a server received, and what it answers.
#[derive(Clone, Default)]
struct Lessor {
    keepalives: Arc<Mutex<Vec<(i64, Instant)>>>,
    answers: Arc<Mutex<HashMap<i64, Answer>>>,
}

#[derive(Clone, Copy)]
enum Answer {
    Ttl(i64),
    Nothing,
    Refusal,
}

impl Lessor {
    /// A server that grants what is asked for and renews it, unless told otherwise.
    async fn start() -> (Self, ScriptedServer) {
        let lessor = Self::default();
        let server = ScriptedServer::start().await;
        server.on("/etcdserverpb.Lease/LeaseGrant", |call| {
            let asked = LeaseGrantRequest::decode(call.body).unwrap();
            Reply::message(&LeaseGrantResponse {
                id: asked.id,
                ttl: asked.ttl,
                ..Default::default()
            })
        });
        server.on("/etcdserverpb.Lease/LeaseRevoke", |_| {
            Reply::message(&LeaseRevokeResponse::default())
        });
        let serving = lessor.clone();
        server.on(KEEP_ALIVE, move |_| {
            let lessor = serving.clone();
            Reply::streaming(async move |mut sender, mut receiver| {
                while let Some(asked) = receiver.recv_message::<LeaseKeepAliveRequest>().await {
                    lessor
                        .keepalives
                        .lock()
                        .unwrap()
                        .push((asked.id, Instant::now()));
                    let answer = lessor.answers.lock().unwrap().get(&asked.id).copied();
                    let ttl = match answer.unwrap_or(Answer::Ttl(2)) {
                        Answer::Ttl(ttl) => ttl,
                        Answer::Nothing => continue,
                        Answer::Refusal => {
                            sender.status(7, "etcdserver: permission denied");
                            return;
                        }
                    };
                    let answer = LeaseKeepAliveResponse {
                        id: asked.id,
                        ttl,
                        ..Default::default()
                    };
                    if sender.send(&answer).await.is_err() {
                        return;
                    }
                }
            })
        });
        (lessor, server)
    }

    fn answer(&self, lease: i64, answer: Answer) {
        self.answers.lock().unwrap().insert(lease, answer);
    }

    fn count(&self, lease: i64) -> usize {
        let keepalives = self.keepalives.lock().unwrap();
        keepalives.iter().filter(|(id, _)| *id == lease).count()
    }

    fn times(&self, lease: i64) -> Vec<Instant> {
        let keepalives = self.keepalives.lock().unwrap();
        keepalives
            .iter()
            .filter(|(id, _)| *id == lease)
            .map(|(_, at)| *at)
            .collect()
    }
}

#[tokio::test]
async fn a_lost_lease_is_not_kept_alive_any_more() {
    let (lessor, server) = Lessor::start().await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    let other = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    lessor.answer(lease.id(), Answer::Ttl(0));
    assert_eq!(lease.lost().await, LostReason::Revoked);
    let (count, others) = (lessor.count(lease.id()), lessor.count(other.id()));
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(lessor.count(lease.id()), count);
    assert!(lessor.count(other.id()) >= others + 2, "the other one is");
}

#[tokio::test]
async fn a_lease_without_handle_is_not_kept_alive_any_more() {
    let (lessor, server) = Lessor::start().await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let dropped = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    let id = dropped.id();
    let mut events = dropped.events();
    events.next().await.unwrap();
    drop(dropped);
    assert_eq!(events.next().await, None);
    // One that was on its way may still arrive.
    tokio::time::sleep(SECOND / 10).await;
    let count = lessor.count(id);
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(lessor.count(id), count);
}

#[tokio::test]
async fn keepalives_come_every_third_of_the_ttl_and_no_more_often() {
    let (lessor, server) = Lessor::start().await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    let mut events = lease.events();
    for _ in 0..6 {
        assert!(matches!(
            events.next().await,
            Some(LeaseEvent::Renewed { .. })
        ));
    }
    let times = lessor.times(lease.id());
    for pair in times[..6].windows(2) {
        let gap = pair[1] - pair[0];
        assert!(gap >= Duration::from_millis(500) && gap < SECOND, "{gap:?}");
    }
    assert_eq!(server.count(KEEP_ALIVE), 1, "one stream");
}

#[tokio::test]
async fn a_keepalive_that_is_swallowed_goes_by_another_member_at_once() {
    let (silent, silent_server) = Lessor::start().await;
    let (other, other_server) = Lessor::start().await;
    let etcd = Client::connect([silent_server.endpoint(), other_server.endpoint()])
        .await
        .unwrap();
    etcd.wait_ready(5 * SECOND).await.unwrap();
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    silent.answer(lease.id(), Answer::Nothing);
    let mut events = lease.events();
    for _ in 0..4 {
        let event = events.next().await;
        assert!(
            matches!(event, Some(LeaseEvent::Renewed { .. })),
            "{event:?}"
        );
    }
    let swallowed = silent.times(lease.id());
    if let Some(first) = swallowed.first() {
        let answered = other.times(lease.id());
        let next = answered.iter().find(|at| *at > first).unwrap();
        let wait = *next - *first;
        assert!(wait < Duration::from_millis(600), "{wait:?}");
        assert!(
            wait >= Duration::from_millis(300),
            "one in flight: {wait:?}"
        );
    }
    // Both servers say they lead, so which is asked first is open; one of both orders is always the silent one's.
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    other.answer(lease.id(), Answer::Nothing);
    let mut events = lease.events();
    assert!(matches!(
        events.next().await,
        Some(LeaseEvent::Renewed { .. })
    ));
    let total = silent.count(lease.id()) + other.count(lease.id());
    assert!(total <= 3, "{total}");
}

#[tokio::test]
async fn a_lease_this_user_may_not_keep_is_lost_and_its_neighbours_are_not() {
    let (lessor, server) = Lessor::start().await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let refused = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    let allowed = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    lessor.answer(refused.id(), Answer::Refusal);
    assert_eq!(refused.lost().await, LostReason::PermissionDenied);
    let mut events = allowed.events();
    for _ in 0..4 {
        let event = events.next().await;
        assert!(
            matches!(event, Some(LeaseEvent::Renewed { .. })),
            "{event:?}"
        );
    }
}

#[tokio::test]
async fn silence_makes_no_storm() {
    let (lessor, server) = Lessor::start().await;
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    lessor.answer(lease.id(), Answer::Nothing);
    assert_eq!(lease.lost().await, LostReason::NeverConfirmed);
    let count = lessor.count(lease.id());
    assert!(
        (4..=18).contains(&count),
        "{count} keepalives in six seconds"
    );
}
