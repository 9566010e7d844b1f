//! Sessions that heal while members, links and the actor that heals them fail.

use std::time::Duration;

use actix_etcd::{
    Client,
    recipes::session::{Session, SessionEvent},
    test_faults,
};
use testbed::{Chaos, ChaosKind, Cluster, Fault};
use tokio_stream::{Stream, StreamExt};

use crate::support::wait::until_async;

const SECOND: Duration = Duration::from_secs(1);

/// A cluster, a client behind its proxies, and one past them.
async fn cluster_and_clients(members: usize) -> (Cluster, Client, Client) {
    let cluster = Cluster::start(members).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
    (cluster, etcd, direct)
}

/// Waits until the key is bound to the session's lease, and there is no other lease.
async fn is_whole(etcd: &Client, session: &Session, key: &'static str) {
    until_async("its key is bound to its only lease", async || {
        let (found, leases) = (etcd.get(key).await, etcd.leases().await);
        let bound = found.ok().and_then(|found| Some(found.first()?.lease));
        let only = leases.is_ok_and(|all| Some(all.leases) == session.lease().map(|id| vec![id]));
        bound == session.lease() && only
    })
    .await;
}

/// Waits until that is told.
async fn told(
    events: &mut (impl Stream<Item = SessionEvent> + Unpin),
    wanted: impl Fn(&SessionEvent) -> bool,
) {
    let heard = tokio::time::timeout(30 * SECOND, async {
        while !wanted(&events.next().await.expect("a session that is not lost")) {}
    });
    heard.await.expect("it was not told");
}

fn healing(event: &SessionEvent) -> bool {
    matches!(event, SessionEvent::Healing(_))
}

fn healed(event: &SessionEvent) -> bool {
    matches!(event, SessionEvent::Healed { .. })
}

#[tokio::test]
async fn a_crash_before_the_loss_costs_no_healing() {
    let (_cluster, etcd, _) = cluster_and_clients(1).await;
    let session = etcd.session(2 * SECOND).heal().await.unwrap();
    session.put("a", "1").await.unwrap();
    let before = session.lease().unwrap();
    for _ in 0..3 {
        test_faults::crash_session(&session);
    }
    etcd.revoke(before).await.unwrap();
    until_async("it has a new lease", async || {
        session.lease() != Some(before)
    })
    .await;
    is_whole(&etcd, &session, "a").await;
}

#[tokio::test]
async fn a_crash_in_the_middle_of_healing_is_healed() {
    let (cluster, etcd, direct) = cluster_and_clients(1).await;
    let session = etcd
        .session(2 * SECOND)
        .heal()
        .give_up_after(Duration::ZERO)
        .await
        .unwrap();
    session.put("a", "1").await.unwrap();
    let mut events = session.events();
    cluster.member(0).client_link().set(Fault::Freeze);
    told(&mut events, healing).await;
    for _ in 0..3 {
        test_faults::crash_session(&session);
    }
    cluster.heal();
    told(&mut events, healed).await;
    is_whole(&direct, &session, "a").await;
}

#[tokio::test]
async fn a_session_that_heals_is_whole_after_chaos() {
    let (cluster, etcd, _) = cluster_and_clients(3).await;
    let session = etcd
        .session(2 * SECOND)
        .heal()
        .give_up_after(Duration::ZERO)
        .await
        .unwrap();
    session.put("a", "1").await.unwrap();
    Chaos::from_env("sessions")
        .run(&cluster, &ChaosKind::ALL)
        .await;
    is_whole(&etcd, &session, "a").await;
}
