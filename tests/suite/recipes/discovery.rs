//! Registration and discovery of service instances.

use std::time::Duration;

use actix::Actor;
use actix_etcd::{
    ErrorKind, Etcd,
    kv::get,
    lease::LeaseLost,
    recipes::discovery::{
        Discovery, DiscoveryEvent, Instances, RegistrationEvent, discover, register,
    },
};
use serde_json::{Value, json};
use testbed::Cluster;
use tokio::time::timeout;
use tokio_stream::{Stream, StreamExt};

use crate::support::{
    connected_cluster::{StartWithClient, connect},
    message_recorder::record_messages,
    wait::{until, until_async},
};

/// TTL of leases that must not expire during a test.
const LONG: Duration = Duration::from_secs(60);

fn addrs(instances: &Instances) -> Vec<&str> {
    instances.iter().map(|found| found.addr.as_str()).collect()
}

async fn next_event(
    events: &mut (impl Stream<Item = RegistrationEvent> + Unpin),
) -> Option<RegistrationEvent> {
    let event = timeout(LONG, events.next()).await;
    event.expect("an event arrives in time")
}

/// Waits for the next change. Returns the addresses that joined, changed and left, and all addresses after the change.
async fn next_change(discovery: &mut Discovery) -> [String; 4] {
    let event = timeout(LONG, discovery.next()).await;
    let event = event.expect("an event arrives in time").unwrap();
    let DiscoveryEvent::Changed(change) = event else {
        panic!("{event:?}");
    };
    let lists = [
        &change.joined[..],
        &change.changed,
        &change.left,
        &change.instances,
    ];
    lists.map(|list| {
        let addrs: Vec<_> = list.iter().map(|found| found.addr.as_str()).collect();
        addrs.join(" ")
    })
}

#[tokio::test]
async fn discovery_reports_joined_changed_and_left_instances() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mut web = etcd.discover("web").await.unwrap();
    assert_eq!(next_change(&mut web).await, ["", "", "", ""]);
    let a = etcd.register("web", "a:1").ttl(LONG).await.unwrap();
    assert_eq!(next_change(&mut web).await, ["a:1", "", "", "a:1"]);
    let b = etcd.register("web", "b:1").metadata("zone b");
    let b = b.ttl(LONG).await.unwrap();
    assert_eq!(next_change(&mut web).await, ["b:1", "", "", "a:1 b:1"]);
    assert_eq!(web.instances()[1].metadata, "zone b");
    assert_eq!(web.instances()[1].key, "web/b:1");
    a.update("a:2", json!({ "weight": 2 })).await.unwrap();
    assert_eq!(next_change(&mut web).await, ["", "a:2", "", "a:2 b:1"]);
    a.unregister().await.unwrap();
    assert_eq!(next_change(&mut web).await, ["", "", "a:2", "b:1"]);

    // A clone and a later discovery start with the current instances.
    assert_eq!(next_change(&mut web.clone()).await, ["b:1", "", "", "b:1"]);
    let mut later = etcd.discover("web").await.unwrap();
    drop(b);
    assert_eq!(next_change(&mut web).await, ["", "", "b:1", ""]);
    until("the list is current although no event was read", || {
        later.instances().is_empty()
    })
    .await;
    assert_eq!(next_change(&mut later).await, ["", "", "", ""]);
}

#[tokio::test]
async fn slow_reader_receives_changes_merged() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mut web = etcd.discover("web").await.unwrap();
    next_change(&mut web).await;
    let permanent = etcd.register("web", "permanent").ttl(LONG).await.unwrap();
    for n in 0..50 {
        permanent.update("permanent", n).await.unwrap();
        let guest = etcd.register("web", format!("guest-{n}")).ttl(LONG);
        guest.await.unwrap().unregister().await.unwrap();
    }
    let revision = etcd.get("web/").prefix().await.unwrap().header.revision;
    until("the list includes all changes", || {
        web.instances().revision() == revision
    })
    .await;
    assert_eq!(
        next_change(&mut web).await,
        ["permanent", "", "", "permanent"]
    );
    assert_eq!(web.instances()[0].metadata, 49);
}

#[tokio::test]
async fn instances_are_compatible_with_go_endpoints() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let ours = etcd
        .register("grpc/web", "127.0.0.1:8080")
        .ttl(LONG)
        .await
        .unwrap();
    let with_id = etcd.register("grpc/web", "127.0.0.1:8081").id("second");
    let with_id = with_id.metadata(json!({ "b": "<1>", "a": [1, true] }));
    let with_id = with_id.ttl(LONG).await.unwrap();
    assert_eq!(with_id.key(), "grpc/web/second");
    let value = async |key: &str| {
        let found = etcd.get(key.to_owned()).await.unwrap();
        found.first().unwrap().value.clone()
    };
    // The bytes that Go's `encoding/json` writes for its package `endpoints`.
    assert_eq!(
        value("grpc/web/127.0.0.1:8080").await,
        r#"{"Op":0,"Addr":"127.0.0.1:8080","Metadata":null}"#
    );
    assert_eq!(
        value("grpc/web/second").await,
        r#"{"Op":0,"Addr":"127.0.0.1:8081","Metadata":{"a":[1,true],"b":"\u003c1\u003e"}}"#
    );
    drop((ours, with_id));

    let go = r#"{"Op":0,"Addr":"10.0.0.1:80","Metadata":{"zone":"a\u0026b"}}"#;
    etcd.put("svc/1", go).await.unwrap();
    etcd.put("svc/nested/2", r#"{"Op":0,"Addr":"h:2","Metadata":null}"#)
        .await
        .unwrap();
    // Keys of other services, and a value that is not an instance.
    for key in ["svc", "svc2/1", "sv/1"] {
        etcd.put(key, go).await.unwrap();
    }
    etcd.put("svc/broken", "10.0.0.2:80").await.unwrap();
    let svc = etcd.discover("svc").await.unwrap();
    let found = svc.instances();
    assert_eq!(addrs(&found), ["10.0.0.1:80", "h:2"]);
    assert_eq!(found[0].metadata, json!({ "zone": "a&b" }));
    assert_eq!(found[1].metadata, Value::Null);
}

#[tokio::test]
async fn instance_with_lost_lease_is_registered_again() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let web = etcd.discover("web").await.unwrap();
    let a = etcd.register("web", "a").ttl(LONG).await.unwrap();
    let mut events = a.events();
    for round in 0..3 {
        let before = a.lease().unwrap();
        etcd.revoke(before).await.unwrap();
        // Updates while the key is missing, which the registration may not have noticed yet.
        let addr = format!("a-{round}");
        a.update(&addr, Value::Null).await.unwrap();
        assert_eq!(
            next_event(&mut events).await,
            Some(RegistrationEvent::Lapsed(LeaseLost::Revoked))
        );
        let Some(RegistrationEvent::Restored { lease }) = next_event(&mut events).await else {
            panic!("the registration was not restored");
        };
        assert!(lease != before && a.lease() == Some(lease));
        let found = etcd.get("web/a").await.unwrap();
        assert_eq!(found.first().unwrap().lease, lease);
        until("the instance is listed again", || {
            addrs(&web.instances()) == [&addr]
        })
        .await;
    }
    a.unregister().await.unwrap();
    assert_eq!(next_event(&mut events).await, None);
    until("the instance is no longer listed", || {
        web.instances().is_empty()
    })
    .await;
    until_async("no lease is left", async || {
        etcd.leases().await.unwrap().leases.is_empty()
    })
    .await;
}

#[tokio::test]
async fn newer_instance_takes_the_key_for_good() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let former = etcd.register("web", "a").ttl(LONG).await.unwrap();
    let mut events = former.events();
    let newer = etcd.register("web", "a").metadata(2).ttl(LONG);
    let newer = newer.await.unwrap();
    assert_eq!(
        next_event(&mut events).await,
        Some(RegistrationEvent::Taken)
    );
    assert_eq!(next_event(&mut events).await, None, "no event follows");
    assert_eq!(former.lease(), None);
    let late = former.update("a", 1).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::SessionLost);
    // A later subscriber receives the same event.
    let received: Vec<_> = former.events().collect().await;
    assert_eq!(received, [RegistrationEvent::Taken]);
    let found = etcd.get("web/a").await.unwrap();
    assert_eq!(found.first().unwrap().lease, newer.lease().unwrap());
    until_async("the lease of the former instance is revoked", async || {
        etcd.leases().await.unwrap().leases == [newer.lease().unwrap()]
    })
    .await;
    newer.unregister().await.unwrap();
    former.unregister().await.unwrap();
    assert_eq!(etcd.get("web/").prefix().await.unwrap().count, 0);
}

#[tokio::test]
async fn update_never_overwrites_an_unnoticed_newer_instance() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let direct = connect(cluster.direct_endpoints()).await;
    for _ in 0..5 {
        let former = etcd.register("web", "a").ttl(LONG).await.unwrap();
        let newer = direct.register("web", "a").metadata(2).ttl(LONG);
        let newer = newer.await.unwrap();
        let late = former.update("a", 1).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::SessionLost);
        let found = etcd.get("web/a").await.unwrap();
        assert_eq!(found.first().unwrap().lease, newer.lease().unwrap());
    }
}

#[tokio::test]
async fn deleted_key_ends_the_registration() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let a = etcd.register("web", "a").ttl(LONG).await.unwrap();
    let mut events = a.events();
    etcd.delete("web/a").await.unwrap();
    assert_eq!(
        next_event(&mut events).await,
        Some(RegistrationEvent::Taken)
    );
    assert_eq!(etcd.get("web/a").await.unwrap().count, 0);
    a.unregister().await.unwrap();
}

#[actix::test]
async fn registration_and_discovery_work_by_message() {
    let (cluster, client) = Cluster::start_with_client(1).await;
    let etcd = Etcd::new(client.clone()).start();
    let (detached_events, recipient) = record_messages::<DiscoveryEvent>();
    // Without a handle to drop, the discovery goes on.
    etcd.do_send(discover("web").deliver_to(recipient));
    let (events, recipient) = record_messages::<DiscoveryEvent>();
    let handle = etcd.send(discover("web").deliver_to(recipient)).await;
    let handle = handle.unwrap().unwrap();
    let a = etcd.send(register("web", "a").ttl(LONG)).await;
    let a = a.unwrap().unwrap();
    etcd.do_send(register("web", "b").ttl(LONG));
    let last = |events: &Vec<DiscoveryEvent>| match events.last() {
        Some(DiscoveryEvent::Changed(change)) => addrs(&change.instances).join(" "),
        Some(event) => format!("{event:?}"),
        None => String::new(),
    };
    for events in [&detached_events, &events] {
        until("both instances are reported", || {
            last(&events.lock().unwrap()) == "a b"
        })
        .await;
    }
    drop(handle);
    let (registration_events, recipient) = record_messages::<RegistrationEvent>();
    let _subscription = a.deliver_to(recipient);
    client.revoke(a.lease().unwrap()).await.unwrap();
    until("the loss and the restoration are received", || {
        matches!(
            registration_events.lock().unwrap()[..],
            [
                RegistrationEvent::Lapsed(_),
                RegistrationEvent::Restored { .. }
            ]
        )
    })
    .await;
    a.unregister().await.unwrap();
    until("the first instance has left", || {
        last(&detached_events.lock().unwrap()) == "b"
    })
    .await;
    assert_eq!(
        last(&events.lock().unwrap()),
        "a b",
        "an event arrived after the handle was dropped"
    );

    let refused = etcd.send(register("", "a")).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let found = etcd.send(get("web/b")).await.unwrap().unwrap();
    assert_eq!(found.count, 1);
    client.shutdown().await;
    until("the end is received", || {
        let events = detached_events.lock().unwrap();
        matches!(events.last(), Some(DiscoveryEvent::Ended(error)) if error.kind() == ErrorKind::Shutdown)
    })
    .await;
    let other = connect(cluster.endpoints()).await;
    until_async(
        "the shutdown removes instances registered by message",
        async || other.get("web/").prefix().await.unwrap().count == 0,
    )
    .await;
}

#[tokio::test]
async fn invalid_registrations_are_rejected() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let kind = |error: actix_etcd::Error| error.kind();
    let rejected = etcd.register("web", "").await;
    assert_eq!(
        rejected.map_err(kind).unwrap_err(),
        ErrorKind::InvalidArgument
    );
    let rejected = etcd.register("web", "a").id("").await;
    assert_eq!(
        rejected.map_err(kind).unwrap_err(),
        ErrorKind::InvalidArgument
    );
    let rejected = etcd.discover("").await;
    assert_eq!(
        rejected.map_err(kind).unwrap_err(),
        ErrorKind::InvalidArgument
    );
    assert!(etcd.leases().await.unwrap().leases.is_empty());
}
