//! Sessions, watches, registrations and discovery that are requested before etcd runs.

use std::time::Duration;

use actix::Actor;
use actix_etcd::{
    Client, Error, ErrorKind, Etcd,
    recipes::discovery::{discover, register},
    watch::{WatchEvent, watch_keys},
};
use testbed::Cluster;
use tokio::time::timeout;

use crate::support::{
    auth_cluster::{connect_as, start_with_auth},
    message_recorder::record_messages,
    wait::{TEST_TIMEOUT, until},
};

const SECOND: Duration = Duration::from_secs(1);
/// Short, so that a request that does not wait fails before the cluster starts.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(300);

/// Returns a cluster that does not run yet, and a client of it.
async fn stopped_cluster() -> (Cluster, Client) {
    let cluster = Cluster::start(1).await;
    cluster.member(0).kill();
    let builder = Client::builder(cluster.endpoints());
    let etcd = builder.request_timeout(REQUEST_TIMEOUT).connect_lazy();
    (cluster, etcd.await.unwrap())
}

#[tokio::test]
async fn waiting_requests_succeed_when_cluster_starts() {
    let (cluster, etcd) = stopped_cluster().await;
    let session = tokio::spawn(etcd.session(5 * SECOND).wait().into_future());
    let watch = tokio::spawn(etcd.watch("k").wait().into_future());
    let resyncing = tokio::spawn(etcd.watch("k").resync().wait().into_future());
    let registration = tokio::spawn(etcd.register("web", "a:1").wait().into_future());
    let instances = tokio::spawn(etcd.discover("web").wait().into_future());
    // Without waiting, the same request fails meanwhile.
    for _ in 0..3 {
        let error = etcd.session(5 * SECOND).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
    }
    assert!(!session.is_finished() && !watch.is_finished() && !resyncing.is_finished());
    assert!(!registration.is_finished() && !instances.is_finished());
    cluster.start_all().await;
    let started = timeout(TEST_TIMEOUT, async {
        session.await.unwrap().unwrap().close().await.unwrap();
        let _registration = registration.await.unwrap().unwrap();
        let instances = instances.await.unwrap().unwrap();
        until("the instance is listed", || {
            instances.instances().len() == 1
        })
        .await;
        for watch in [watch, resyncing] {
            let mut watch = watch.await.unwrap().unwrap();
            etcd.put("k", "v").await.unwrap();
            let event = watch.next().await;
            assert!(matches!(event, Some(WatchEvent::Events(_))), "{event:?}");
        }
    });
    started.await.unwrap();
}

#[actix::test]
async fn delivery_waits_for_cluster() {
    let (cluster, etcd) = stopped_cluster().await;
    let (received, recipient) = record_messages::<WatchEvent>();
    let client = etcd.clone();
    let delivery = actix_rt::spawn(async move {
        let watch = client.watch("k").wait();
        watch.deliver_to(recipient).await
    });
    let actor = Etcd::new(etcd.clone()).start();
    let registration = actor.send(register("web", "a:1").wait());
    let (_, instances) = record_messages();
    let subscription = actor.send(discover("web").wait().deliver_to(instances));
    let (_, events) = record_messages();
    let watch = actor.send(watch_keys("k").wait().deliver_to(events));
    let pending = tokio::spawn(async move { tokio::join!(registration, subscription, watch) });
    for _ in 0..3 {
        etcd.get("k").await.unwrap_err();
    }
    assert!(!delivery.is_finished() && !pending.is_finished());
    cluster.start_all().await;
    let _handle = timeout(TEST_TIMEOUT, delivery)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let (registration, subscription, watch) =
        timeout(TEST_TIMEOUT, pending).await.unwrap().unwrap();
    let _registration = registration.unwrap().unwrap();
    let _subscription = subscription.unwrap().unwrap();
    let _watch = watch.unwrap().unwrap();
    etcd.put("k", "v").await.unwrap();
    until("the event is delivered", || {
        !received.lock().unwrap().is_empty()
    })
    .await;
}

#[tokio::test]
async fn waiting_ends_with_shutdown() {
    let (_cluster, etcd) = stopped_cluster().await;
    let session = tokio::spawn(etcd.session(5 * SECOND).wait().into_future());
    let watch = tokio::spawn(etcd.watch("k").wait().into_future());
    let registration = tokio::spawn(etcd.register("web", "a:1").wait().into_future());
    let instances = tokio::spawn(etcd.discover("web").wait().into_future());
    etcd.get("k").await.unwrap_err();
    etcd.shutdown().await;
    let ended = timeout(TEST_TIMEOUT, async {
        let results: [Error; 4] = [
            session.await.unwrap().unwrap_err(),
            watch.await.unwrap().unwrap_err(),
            registration.await.unwrap().unwrap_err(),
            instances.await.unwrap().unwrap_err(),
        ];
        results.map(|error| error.kind())
    });
    assert_eq!(ended.await.unwrap(), [ErrorKind::Shutdown; 4]);
}

#[tokio::test]
async fn permanent_error_is_not_waited_for() {
    let cluster = start_with_auth(Cluster::builder()).await;
    cluster.add_user("ann", "word", Some("a/")).await;
    let etcd = connect_as(&cluster, "ann", "word").await;
    let failed = timeout(TEST_TIMEOUT, async {
        [
            etcd.watch("b").wait().await.map(drop),
            etcd.register("b", "a:1").wait().await.map(drop),
            etcd.discover("b").wait().await.map(drop),
        ]
    });
    for result in failed.await.unwrap() {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    let invalid = etcd.discover("").wait().await.map(drop).unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::InvalidArgument);
}
