//! Leases on a real cluster: granted, kept, asked for, revoked, dropped.

use std::time::{Duration, Instant};

use actix::{Actor, Context, Handler};
use actix_etcd::{
    Client, ConnectivityState, ErrorKind,
    lease::{LeaseEvent, LeaseNews, LostReason},
};
use testbed::Cluster;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::{
    lease_record::Recorder,
    machine_delay::Lateness,
    wait::{hold, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than anything here takes on a busy machine.
const AT_MOST: Duration = Duration::from_secs(30);

async fn cluster_and_client(members: usize) -> (Cluster, Client) {
    let cluster = Cluster::start(members).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    (cluster, etcd)
}

async fn gone(etcd: &Client, lease: i64) {
    until_async("the server does not have it", async || {
        etcd.time_to_live(lease).await.unwrap().remaining.is_none()
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_granted_asked_for_listed_renewed_and_revoked() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let lease = etcd.lease(Duration::from_millis(9_500)).await.unwrap();
    assert!(lease.id() > 0);
    assert_eq!(lease.ttl(), 10 * SECOND, "rounded up");
    assert!(lease.remaining() > 9 * SECOND && lease.remaining() <= 10 * SECOND);
    etcd.put("a", "1").lease(&lease).await.unwrap();
    etcd.put("b", "2").lease(&lease).await.unwrap();
    let mut keys = lease.keys().await.unwrap();
    keys.sort();
    assert_eq!(keys, ["a", "b"]);
    let left = lease.time_to_live().await.unwrap();
    assert_eq!(left.granted, 10 * SECOND);
    assert!(left.remaining.unwrap() >= 8 * SECOND && left.keys.is_empty());
    assert_eq!(etcd.leases().await.unwrap().leases, [lease.id()]);
    let renewed = etcd.keep_alive_once(&lease).await.unwrap();
    assert_eq!((renewed.lease, renewed.ttl), (lease.id(), 10 * SECOND));
    let for_ever = etcd.keep_alive_once(&lease).timeout(Duration::MAX);
    assert_eq!(for_ever.await.unwrap().ttl, 10 * SECOND);
    let id = lease.id();
    lease.revoke().await.unwrap();
    assert_eq!(etcd.get("a").await.unwrap().count, 0);
    assert_eq!(etcd.time_to_live(id).await.unwrap().remaining, None);
    let again = etcd.revoke(id).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::LeaseNotFound);
    let once = etcd.keep_alive_once(id).await.unwrap_err();
    assert_eq!(once.kind(), ErrorKind::LeaseNotFound);
}

#[tokio::test]
async fn an_id_of_the_user_is_taken_once() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let lease = etcd.lease(10 * SECOND).id(4711).await.unwrap();
    assert_eq!(lease.id(), 4711);
    let again = etcd.lease(10 * SECOND).id(4711).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::LeaseExists);
    for bad in [0, -1] {
        let error = etcd.lease(SECOND).id(bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    for bad in [Duration::ZERO, Duration::MAX] {
        let error = etcd.lease(bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[tokio::test]
async fn a_kept_lease_outlives_its_ttl_and_a_dropped_one_does_not() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let lease = etcd.lease(4 * SECOND).keep_alive().await.unwrap();
    let recorder = Recorder::start(&lease, Some(&cluster));
    let mut events = lease.events();
    for _ in 0..8 {
        let event = events.next().await;
        assert!(
            matches!(event, Some(LeaseEvent::Renewed { deadline }) if deadline > Instant::now()),
            "{event:?}"
        );
    }
    let record = recorder.check_alive().await;
    assert!(record.probes.len() > 10);
    drop(recorder);
    let id = lease.id();
    drop(lease);
    assert_eq!(events.next().await, None, "nothing is told any more");
    gone(&etcd, id).await;
}

#[tokio::test]
async fn a_lease_that_is_not_kept_ends_with_its_time() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let lease = etcd.lease(2 * SECOND).await.unwrap();
    gone(&etcd, lease.id()).await;
    assert_eq!(lease.remaining(), Duration::ZERO);
}

#[tokio::test]
async fn keeping_can_begin_later() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let mut lease = etcd.lease(6 * SECOND).await.unwrap();
    hold(SECOND).await;
    lease.keep_alive();
    let mut events = lease.events();
    for _ in 0..4 {
        let event = events.next().await;
        assert!(
            matches!(event, Some(LeaseEvent::Renewed { .. })),
            "{event:?}"
        );
    }
    assert!(lease.time_to_live().await.unwrap().remaining.is_some());
}

#[tokio::test]
async fn revoke_on_drop_revokes_at_once_and_detach_leaves_alone() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let doomed = |ttl| etcd.lease(ttl).revoke_on_drop();
    let kept = doomed(60 * SECOND).keep_alive().await.unwrap();
    let not_kept = doomed(60 * SECOND).await.unwrap();
    for lease in [kept, not_kept] {
        let id = lease.id();
        drop(lease);
        gone(&etcd, id).await;
    }
    let short = doomed(2 * SECOND).keep_alive().await.unwrap().detach();
    gone(&etcd, short).await;
    let long = doomed(60 * SECOND).keep_alive().await.unwrap().detach();
    // Whatever it was going to do is done.
    etcd.shutdown().await;
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    let left = other.time_to_live(long).await.unwrap();
    assert!(left.remaining.is_some());
}

#[tokio::test]
async fn the_last_handle_of_a_client_still_revokes() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    let lease = etcd
        .lease(60 * SECOND)
        .keep_alive()
        .revoke_on_drop()
        .await
        .unwrap();
    let id = lease.id();
    drop(etcd);
    assert!(other.time_to_live(id).await.unwrap().remaining.is_some());
    drop(lease);
    gone(&other, id).await;
}

#[tokio::test]
async fn a_lease_whose_id_was_granted_again_is_lost_and_does_not_end_the_new_one() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    let mut new = Vec::new();
    for (id, kept) in [(4711, true), (4712, false)] {
        let grant = etcd.lease(60 * SECOND).id(id).revoke_on_drop();
        let old = if kept { grant.keep_alive() } else { grant };
        let old = old.await.unwrap();
        other.revoke(id).await.unwrap();
        new.push(etcd.lease(60 * SECOND).id(id).await.unwrap());
        if kept {
            // Long before its next keepalive would find out.
            let lost = timeout(5 * SECOND, old.lost()).await;
            assert_eq!(lost, Ok(LostReason::Revoked));
        }
        drop(old);
    }
    // Whatever it was going to do is done.
    etcd.shutdown().await;
    let mut left = other.leases().await.unwrap().leases;
    left.sort_unstable();
    assert_eq!(left, [4711, 4712]);
}

#[tokio::test]
async fn a_lease_revoked_by_someone_is_told_as_such() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    let recorder = Recorder::start(&lease, Some(&cluster));
    recorder.revoking();
    etcd.revoke(&lease).await.unwrap();
    assert_eq!(lease.lost().await, LostReason::Revoked);
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert_eq!(
        lease.events().next().await,
        Some(LeaseEvent::Lost(LostReason::Revoked))
    );
    recorder.check();
}

#[tokio::test]
async fn a_lease_that_expired_is_told_so_only_after_its_deadline() {
    let (cluster, etcd) = cluster_and_client(3).await;
    let lease = etcd
        .lease(2 * SECOND)
        .keep_alive()
        .give_up_after(60 * SECOND)
        .await
        .unwrap();
    let recorder = Recorder::start(&lease, Some(&cluster));
    for member in cluster.members() {
        member.client_link().set(testbed::Fault::Freeze);
    }
    let mut events = lease.events();
    let at_risk = timeout(AT_MOST, async {
        loop {
            if let LeaseEvent::AtRisk { deadline } = events.next().await.unwrap() {
                return deadline;
            }
        }
    });
    assert!(at_risk.await.unwrap() <= Instant::now());
    // An election may have given it more time: healed before it is gone, it would live on.
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    gone(&direct, lease.id()).await;
    cluster.heal();
    let lost = timeout(AT_MOST, lease.lost()).await;
    assert_eq!(lost, Ok(LostReason::Expired));
    recorder.check();
}

#[tokio::test]
async fn an_outage_of_all_members_is_lived_through_if_etcd_kept_the_lease() {
    let (cluster, etcd) = cluster_and_client(3).await;
    let grant = etcd.lease(6 * SECOND).keep_alive();
    // Members may take their time to start again.
    let lease = grant.give_up_after(AT_MOST).await.unwrap();
    let recorder = Recorder::start(&lease, Some(&cluster));
    for member in cluster.members() {
        member.kill();
    }
    hold(8 * SECOND).await;
    let mut events = lease.events();
    cluster.start_all().await;
    loop {
        match events.next().await {
            Some(LeaseEvent::Renewed { .. }) => break,
            Some(LeaseEvent::AtRisk { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    let record = recorder.check_alive().await;
    let at_risk = |told: &testbed::lease_validators::OwnerEvent| {
        matches!(told, testbed::lease_validators::OwnerEvent::AtRisk { .. })
    };
    assert!(
        record.owner_events.iter().any(|(_, told)| at_risk(told)),
        "{:#?}",
        record.owner_events
    );
    assert!(lease.time_to_live().await.unwrap().remaining.is_some());
}

#[tokio::test]
async fn a_lease_nobody_confirms_is_given_up_when_it_was_said() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let lease = etcd
        .lease(2 * SECOND)
        .keep_alive()
        .give_up_after(SECOND)
        .await
        .unwrap();
    let mut events = lease.events();
    let lateness = Lateness::watch();
    cluster.member(0).freeze();
    // One that was on its way may still have renewed it.
    let mut deadline = lease.deadline();
    let lost = timeout(AT_MOST, async {
        loop {
            match events.next().await.unwrap() {
                LeaseEvent::Renewed { deadline: renewed } => deadline = renewed,
                LeaseEvent::Lost(reason) => return reason,
                _ => {}
            }
        }
    });
    assert_eq!(lost.await, Ok(LostReason::NeverConfirmed));
    let after = Instant::now().saturating_duration_since(deadline);
    let late = lateness.worst();
    assert!(after >= SECOND, "{after:?}");
    assert!(after < 2 * SECOND + 3 * late, "{after:?}, late {late:?}");
}

#[tokio::test]
async fn an_application_that_blocks_its_thread_keeps_its_lease() {
    let (cluster, etcd) = cluster_and_client(1).await;
    let lease = etcd.lease(4 * SECOND).keep_alive().await.unwrap();
    let recorder = Recorder::start(&lease, None);
    std::thread::sleep(9 * SECOND);
    assert!(lease.remaining() > Duration::ZERO);
    assert!(lease.time_to_live().await.unwrap().remaining.is_some());
    recorder.check_alive().await;
    drop(cluster);
}

#[tokio::test]
async fn a_thousand_leases_share_one_stream_a_connection() {
    let (cluster, etcd) = cluster_and_client(3).await;
    until("every member is connected", || {
        let mut members = etcd.connectivity().into_iter();
        members.all(|member| member.state == ConnectivityState::Ready)
    })
    .await;
    let mut changes = etcd.connectivity_changes().await.unwrap();
    let mut leases = Vec::new();
    for _ in 0..1_000 {
        // An answer is waited for five seconds: no machine is so slow that a stream is left for another.
        leases.push(etcd.lease(30 * SECOND).keep_alive().await.unwrap());
    }
    let all: Vec<_> = leases.iter().map(actix_etcd::Lease::events).collect();
    for mut events in all {
        assert!(matches!(
            events.next().await,
            Some(LeaseEvent::Renewed { .. })
        ));
    }
    // On a busy machine a connection may have been given up for another one.
    let mut again = 0.0;
    while let Ok(Some(change)) = timeout(Duration::ZERO, changes.next()).await {
        again += f64::from(u8::from(change.state == ConnectivityState::Ready));
    }
    let mut all = 0.0;
    for member in cluster.members() {
        let name = "grpc_server_started_total{grpc_method=\"LeaseKeepAlive\"}";
        let streams = member.metric(name).await.expect("etcd counts its streams");
        let number = member.index();
        assert!(streams <= 1.0 + again, "{streams} on member {number}");
        all += streams;
    }
    assert!(all >= 1.0, "they are kept on a stream");
    assert_eq!(etcd.leases().await.unwrap().leases.len(), 1_000);
}

struct Listener(tokio::sync::mpsc::UnboundedSender<LeaseNews>);

impl Actor for Listener {
    type Context = Context<Self>;
}

impl Handler<LeaseNews> for Listener {
    type Result = ();

    fn handle(&mut self, news: LeaseNews, _: &mut Context<Self>) {
        let _ = self.0.send(news);
    }
}

#[actix::test]
async fn an_actor_is_sent_the_same() {
    let (_cluster, etcd) = cluster_and_client(1).await;
    let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let listener = Listener(heard).start();
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    lease.send_to(listener.clone().recipient());
    let news = hears.recv().await.unwrap();
    assert_eq!(news.lease, lease.id());
    assert!(matches!(news.event, LeaseEvent::Renewed { .. }));
    etcd.revoke(&lease).await.unwrap();
    let mut last = news.event;
    while !matches!(last, LeaseEvent::Lost(_)) {
        last = hears.recv().await.unwrap().event;
    }
    assert_eq!(last, LeaseEvent::Lost(LostReason::Revoked));
}
