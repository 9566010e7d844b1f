//! Self-healing sessions while members, links and the session's own actor fail.

use std::time::Duration;

use actix_etcd::{
    Client,
    recipes::session::{Session, SessionEvent},
    test_faults,
};
use testbed::{Cluster, Fault};
use tokio_stream::{Stream, StreamExt};

use crate::support::wait::until_async;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a cluster, a client that connects through its fault proxies, and a client that connects directly.
async fn cluster_and_clients(members: usize) -> (Cluster, Client, Client) {
    let cluster = Cluster::start(members).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    (cluster, etcd, direct)
}

/// Opens a self-healing session that gives up its lease as soon as the deadline has passed, and puts the key `a`.
async fn open_impatient_session(etcd: &Client) -> Session {
    let session = etcd.session(2 * SECOND).heal();
    let session = session.give_up_after(Duration::ZERO).await.unwrap();
    session.put("a", "1").await.unwrap();
    session
}

/// Waits until the key is bound to the session's lease and the cluster has no other lease.
async fn until_restored(etcd: &Client, session: &Session, key: &'static str) {
    until_async("the key is bound to the only lease", async || {
        let (found, leases) = (etcd.get(key).await, etcd.leases().await);
        let bound = found.ok().and_then(|found| Some(found.first()?.lease));
        let only = leases.is_ok_and(|all| Some(all.leases) == session.lease().map(|id| vec![id]));
        bound == session.lease() && only
    })
    .await;
}

/// Waits for an event that `matches` accepts.
async fn wait_for_event(
    events: &mut (impl Stream<Item = SessionEvent> + Unpin),
    matches: impl Fn(&SessionEvent) -> bool,
) {
    let received = tokio::time::timeout(30 * SECOND, async {
        while !matches(&events.next().await.expect("the session is not lost")) {}
    });
    received.await.expect("the event arrives within 30 s");
}

fn is_healing(event: &SessionEvent) -> bool {
    matches!(event, SessionEvent::Healing(_))
}

fn is_healed(event: &SessionEvent) -> bool {
    matches!(event, SessionEvent::Healed { .. })
}

#[tokio::test]
async fn session_heals_after_earlier_actor_crashes() {
    let (_cluster, etcd, _) = cluster_and_clients(1).await;
    let session = etcd.session(2 * SECOND).heal().await.unwrap();
    session.put("a", "1").await.unwrap();
    let before = session.lease().unwrap();
    for _ in 0..3 {
        test_faults::crash_session(&session);
    }
    etcd.revoke(before).await.unwrap();
    until_async("the session has a new lease", async || {
        session.lease() != Some(before)
    })
    .await;
    until_restored(&etcd, &session, "a").await;
}

#[tokio::test]
async fn session_heals_when_actor_crashes_during_healing() {
    let (cluster, etcd, direct) = cluster_and_clients(1).await;
    let session = open_impatient_session(&etcd).await;
    let mut events = session.events();
    cluster.member(0).client_link().set(Fault::Freeze);
    wait_for_event(&mut events, is_healing).await;
    for _ in 0..3 {
        test_faults::crash_session(&session);
    }
    cluster.heal();
    wait_for_event(&mut events, is_healed).await;
    until_restored(&direct, &session, "a").await;
}
