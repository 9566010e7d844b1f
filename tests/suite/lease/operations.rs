//! Granting, keeping, querying, revoking and dropping leases on a real cluster.

use std::time::{Duration, Instant};

use actix::{Actor, Context, Handler};
use actix_etcd::{
    Client, ErrorKind,
    balancer::ConnectivityState,
    lease::{LeaseEvent, LeaseLost, LeaseMessage},
};
use testbed::Cluster;
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::support::{
    connected_cluster::{StartWithClient, connect},
    lease_recorder::LeaseRecorder,
    machine_delay::MachineDelay,
    wait::{TEST_TIMEOUT, hold, until, until_async},
};

const SECOND: Duration = Duration::from_secs(1);

async fn wait_until_gone(etcd: &Client, lease: i64) {
    until_async("the lease does not exist", async || {
        etcd.time_to_live(lease).await.unwrap().remaining.is_none()
    })
    .await;
}

#[tokio::test]
async fn lease_supports_every_operation_until_revoked() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd.lease(Duration::from_millis(9_500)).await.unwrap();
    assert!(lease.id() > 0);
    assert_eq!(lease.ttl(), 10 * SECOND, "not rounded up");
    assert!(lease.remaining() > 9 * SECOND && lease.remaining() <= 10 * SECOND);
    etcd.put("a", "1").lease(&lease).await.unwrap();
    etcd.put("b", "2").lease(&lease).await.unwrap();
    let mut keys = lease.keys().await.unwrap();
    keys.sort();
    assert_eq!(keys, ["a", "b"]);
    let status = lease.time_to_live().await.unwrap();
    assert_eq!(status.granted, 10 * SECOND);
    assert!(status.remaining.unwrap() >= 8 * SECOND && status.keys.is_empty());
    assert_eq!(etcd.leases().await.unwrap().leases, [lease.id()]);
    let renewed = etcd.keep_alive_once(&lease).await.unwrap();
    assert_eq!((renewed.lease, renewed.ttl), (lease.id(), 10 * SECOND));
    let without_timeout = etcd.keep_alive_once(&lease).timeout(Duration::MAX);
    assert_eq!(without_timeout.await.unwrap().ttl, 10 * SECOND);
    let id = lease.id();
    lease.revoke().await.unwrap();
    assert_eq!(etcd.get("a").await.unwrap().count, 0);
    assert_eq!(etcd.time_to_live(id).await.unwrap().remaining, None);
    let error = etcd.revoke(id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseNotFound);
    let error = etcd.keep_alive_once(id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseNotFound);
}

#[tokio::test]
async fn chosen_lease_id_is_granted_once() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd.lease(10 * SECOND).id(4711).await.unwrap();
    assert_eq!(lease.id(), 4711);
    let error = etcd.lease(10 * SECOND).id(4711).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseExists);
    let error = etcd.lease(SECOND).id(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    for invalid in [Duration::ZERO, Duration::MAX] {
        let error = etcd.lease(invalid).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[tokio::test]
async fn kept_lease_outlives_ttl_until_dropped() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd.lease(4 * SECOND).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
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
    assert_eq!(
        events.next().await,
        None,
        "event after the lease was dropped"
    );
    wait_until_gone(&etcd, id).await;
}

#[tokio::test]
async fn unkept_lease_expires_after_ttl() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd.lease(2 * SECOND).await.unwrap();
    wait_until_gone(&etcd, lease.id()).await;
    assert_eq!(lease.remaining(), Duration::ZERO);
}

#[tokio::test]
async fn keep_alive_can_start_after_grant() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
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
async fn revoke_on_drop_revokes_unless_detached() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let grant = |ttl| etcd.lease(ttl).revoke_on_drop();
    let kept = grant(60 * SECOND).keep_alive().await.unwrap();
    let unkept = grant(60 * SECOND).await.unwrap();
    for lease in [kept, unkept] {
        let id = lease.id();
        drop(lease);
        wait_until_gone(&etcd, id).await;
    }
    let short_lived = grant(2 * SECOND).keep_alive().await.unwrap().detach();
    wait_until_gone(&etcd, short_lived).await;
    let long_lived = grant(60 * SECOND).keep_alive().await.unwrap().detach();
    // Shutdown waits for pending revocations.
    etcd.shutdown().await;
    let other = connect(cluster.endpoints()).await;
    let status = other.time_to_live(long_lived).await.unwrap();
    assert!(status.remaining.is_some());
}

#[tokio::test]
async fn dropped_lease_revokes_after_client_is_dropped() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let other = connect(cluster.endpoints()).await;
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
    wait_until_gone(&other, id).await;
}

#[tokio::test]
async fn stale_lease_does_not_revoke_regranted_id() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let other = connect(cluster.endpoints()).await;
    let mut regranted = Vec::new();
    for (id, kept) in [(4711, true), (4712, false)] {
        let grant = etcd.lease(60 * SECOND).id(id).revoke_on_drop();
        let old = if kept { grant.keep_alive() } else { grant };
        let old = old.await.unwrap();
        other.revoke(id).await.unwrap();
        regranted.push(etcd.lease(60 * SECOND).id(id).await.unwrap());
        if kept {
            // Much earlier than the next keepalive, which would also detect it.
            let lost = timeout(5 * SECOND, old.lost()).await;
            assert_eq!(lost, Ok(LeaseLost::Revoked));
        }
        drop(old);
    }
    // Shutdown waits for pending revocations.
    etcd.shutdown().await;
    let mut remaining = other.leases().await.unwrap().leases;
    remaining.sort_unstable();
    assert_eq!(remaining, [4711, 4712]);
}

#[tokio::test]
async fn revoked_lease_reports_revocation() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    recorder.set_revoked();
    etcd.revoke(&lease).await.unwrap();
    assert_eq!(lease.lost().await, LeaseLost::Revoked);
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert_eq!(
        lease.events().next().await,
        Some(LeaseEvent::Lost(LeaseLost::Revoked))
    );
    recorder.check();
}

#[tokio::test]
async fn lease_reports_expiry_only_after_deadline() {
    let (cluster, etcd) = Cluster::start_with_client(3).await;
    let lease = etcd
        .lease(2 * SECOND)
        .keep_alive()
        .give_up_after(60 * SECOND)
        .await
        .unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    for member in cluster.members() {
        member.client_link().set(testbed::Fault::Freeze);
    }
    let mut events = lease.events();
    let at_risk = timeout(TEST_TIMEOUT, async {
        loop {
            if let LeaseEvent::AtRisk { deadline } = events.next().await.unwrap() {
                return deadline;
            }
        }
    });
    assert!(at_risk.await.unwrap() <= Instant::now());
    // An election may have extended the lease. The links are healed only after etcd has removed it.
    let direct = connect(cluster.direct_endpoints()).await;
    wait_until_gone(&direct, lease.id()).await;
    cluster.heal();
    let lost = timeout(TEST_TIMEOUT, lease.lost()).await;
    assert_eq!(lost, Ok(LeaseLost::Expired));
    recorder.check();
}

#[tokio::test]
async fn lease_survives_full_outage_if_etcd_kept_it() {
    let (cluster, etcd) = Cluster::start_with_client(3).await;
    let grant = etcd.lease(6 * SECOND).keep_alive();
    // Members may start slowly.
    let lease = grant.give_up_after(TEST_TIMEOUT).await.unwrap();
    let recorder = LeaseRecorder::start(&lease, Some(&cluster));
    for member in cluster.members() {
        member.kill();
    }
    hold(8 * SECOND).await;
    let mut events = lease.events();
    cluster.start_all().await;
    loop {
        match events.next().await {
            Some(LeaseEvent::Recovered { deadline }) => {
                assert!(deadline > Instant::now());
                break;
            }
            Some(LeaseEvent::AtRisk { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    let record = recorder.check_alive().await;
    let at_risk = |event: &testbed::lease_validators::OwnerEvent| {
        matches!(event, testbed::lease_validators::OwnerEvent::AtRisk { .. })
    };
    assert!(
        record.owner_events.iter().any(|(_, event)| at_risk(event)),
        "{:#?}",
        record.owner_events
    );
    assert!(lease.time_to_live().await.unwrap().remaining.is_some());
}

#[tokio::test]
async fn unconfirmed_lease_is_lost_after_give_up_time() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd
        .lease(2 * SECOND)
        .keep_alive()
        .give_up_after(SECOND)
        .await
        .unwrap();
    let mut events = lease.events();
    let machine_delay = MachineDelay::measure();
    cluster.member(0).freeze();
    // A keepalive in flight may still renew the lease.
    let mut deadline = lease.deadline();
    let lost = timeout(TEST_TIMEOUT, async {
        loop {
            match events.next().await.unwrap() {
                LeaseEvent::Renewed { deadline: renewed } => deadline = renewed,
                LeaseEvent::Lost(reason) => return reason,
                _ => {}
            }
        }
    });
    assert_eq!(lost.await, Ok(LeaseLost::NeverConfirmed));
    let after = Instant::now().saturating_duration_since(deadline);
    let worst_delay = machine_delay.worst();
    assert!(after >= SECOND, "{after:?}");
    assert!(
        after < 2 * SECOND + 3 * worst_delay,
        "lost {after:?} after the deadline, machine delay {worst_delay:?}"
    );
}

#[tokio::test]
async fn blocked_application_thread_keeps_its_lease() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd.lease(4 * SECOND).keep_alive().await.unwrap();
    let recorder = LeaseRecorder::start(&lease, None);
    std::thread::sleep(9 * SECOND);
    assert!(lease.remaining() > Duration::ZERO);
    assert!(lease.time_to_live().await.unwrap().remaining.is_some());
    recorder.check_alive().await;
    drop(cluster);
}

#[tokio::test]
async fn thousand_leases_share_one_stream_per_connection() {
    let (cluster, etcd) = Cluster::start_with_client(3).await;
    until("all members are ready", || {
        let mut members = etcd.connectivity().into_iter();
        members.all(|member| member.state == ConnectivityState::Ready)
    })
    .await;
    let mut changes = etcd.connectivity_changes().await.unwrap();
    let mut leases = Vec::new();
    for _ in 0..1_000 {
        // With this TTL the response timeout is 5 s, so that even a slow machine keeps the stream.
        leases.push(etcd.lease(30 * SECOND).keep_alive().await.unwrap());
    }
    let subscriptions: Vec<_> = leases.iter().map(actix_etcd::Lease::events).collect();
    for mut events in subscriptions {
        assert!(matches!(
            events.next().await,
            Some(LeaseEvent::Renewed { .. })
        ));
    }
    // On a busy machine the client may have replaced a connection.
    let mut reconnects = 0.0;
    while let Ok(Some(change)) = timeout(Duration::ZERO, changes.next()).await {
        reconnects += f64::from(u8::from(change.state == ConnectivityState::Ready));
    }
    let mut total = 0.0;
    for member in cluster.members() {
        let name = "grpc_server_started_total{grpc_method=\"LeaseKeepAlive\"}";
        let streams = member.metric(name).await.expect("etcd counts its streams");
        let index = member.index();
        assert!(streams <= 1.0 + reconnects, "{streams} on member {index}");
        total += streams;
    }
    assert!(total >= 1.0, "no keepalive stream");
    assert_eq!(etcd.leases().await.unwrap().leases.len(), 1_000);
}

/// Forwards its messages to the test.
struct Forwarder(tokio::sync::mpsc::UnboundedSender<LeaseMessage>);

impl Actor for Forwarder {
    type Context = Context<Self>;
}

impl Handler<LeaseMessage> for Forwarder {
    type Result = ();

    fn handle(&mut self, message: LeaseMessage, _: &mut Context<Self>) {
        let _ = self.0.send(message);
    }
}

#[actix::test]
async fn actor_receives_lease_events() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let forwarder = Forwarder(sender).start();
    let lease = etcd.lease(2 * SECOND).keep_alive().await.unwrap();
    lease.deliver_to(forwarder.clone().recipient());
    let first = receiver.recv().await.unwrap();
    assert_eq!(first.lease, lease.id());
    assert!(matches!(first.event, LeaseEvent::Renewed { .. }));
    etcd.revoke(&lease).await.unwrap();
    let mut last = first.event;
    while !matches!(last, LeaseEvent::Lost(_)) {
        last = receiver.recv().await.unwrap().event;
    }
    assert_eq!(last, LeaseEvent::Lost(LeaseLost::Revoked));
}
