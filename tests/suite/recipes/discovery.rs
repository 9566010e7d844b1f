//! Services that register themselves and those who look for them.

use std::time::Duration;

use actix::Actor;
use actix_etcd::{
    Client, ErrorKind, Etcd,
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

use crate::{
    actor::requests::ear,
    support::wait::{until, until_async},
};

const LONG: Duration = Duration::from_secs(60);

async fn cluster_and_client() -> (Cluster, Client) {
    let cluster = Cluster::start(1).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    (cluster, etcd)
}

fn addrs(instances: &Instances) -> Vec<&str> {
    instances.iter().map(|found| found.addr.as_str()).collect()
}

/// What an instance is told next.
async fn heard(
    events: &mut (impl Stream<Item = RegistrationEvent> + Unpin),
) -> Option<RegistrationEvent> {
    let event = timeout(LONG, events.next()).await;
    event.expect("something is told")
}

/// Who joined, changed, left, and who is there then.
async fn told(discovery: &mut Discovery) -> [String; 4] {
    let event = timeout(LONG, discovery.next()).await;
    let event = event.expect("something is told").unwrap();
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
async fn who_looks_for_a_service_is_told_who_joins_changes_and_leaves() {
    let (_cluster, etcd) = cluster_and_client().await;
    let mut web = etcd.discover("web").await.unwrap();
    assert_eq!(told(&mut web).await, ["", "", "", ""], "also of nobody");
    let a = etcd.register("web", "a:1").ttl(LONG).await.unwrap();
    assert_eq!(told(&mut web).await, ["a:1", "", "", "a:1"]);
    let b = etcd.register("web", "b:1").metadata("zone b");
    let b = b.ttl(LONG).await.unwrap();
    assert_eq!(told(&mut web).await, ["b:1", "", "", "a:1 b:1"]);
    assert_eq!(web.instances()[1].metadata, "zone b");
    assert_eq!(web.instances()[1].key, "web/b:1");
    a.update("a:2", json!({ "weight": 2 })).await.unwrap();
    assert_eq!(told(&mut web).await, ["", "a:2", "", "a:2 b:1"]);
    a.unregister().await.unwrap();
    assert_eq!(told(&mut web).await, ["", "", "a:2", "b:1"]);

    // A clone and whoever comes later are told of those who are there first.
    assert_eq!(told(&mut web.clone()).await, ["b:1", "", "", "b:1"]);
    let mut later = etcd.discover("web").await.unwrap();
    drop(b);
    assert_eq!(told(&mut web).await, ["", "", "b:1", ""]);
    until("the list of who does not read is live, too", || {
        later.instances().is_empty()
    })
    .await;
    assert_eq!(told(&mut later).await, ["", "", "", ""]);
}

#[tokio::test]
async fn who_reads_slowly_is_told_the_sum_of_what_happened() {
    let (_cluster, etcd) = cluster_and_client().await;
    let mut web = etcd.discover("web").await.unwrap();
    told(&mut web).await;
    let stays = etcd.register("web", "stays").ttl(LONG).await.unwrap();
    for n in 0..50 {
        stays.update("stays", n).await.unwrap();
        let goes = etcd.register("web", format!("goes-{n}")).ttl(LONG);
        goes.await.unwrap().unregister().await.unwrap();
    }
    let revision = etcd.get("web/").prefix().await.unwrap().header.revision;
    until("the list has arrived", || {
        web.instances().revision() == revision
    })
    .await;
    assert_eq!(told(&mut web).await, ["stays", "", "", "stays"]);
    assert_eq!(web.instances()[0].metadata, 49);
}

#[tokio::test]
async fn instances_are_shared_with_go_programs() {
    let (_cluster, etcd) = cluster_and_client().await;
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
    // As Go's encoding/json writes what its package `endpoints` stores.
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
    // Of other services, and what is no instance.
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
async fn an_instance_whose_lease_is_lost_is_listed_again_and_told_so() {
    let (_cluster, etcd) = cluster_and_client().await;
    let web = etcd.discover("web").await.unwrap();
    let a = etcd.register("web", "a").ttl(LONG).await.unwrap();
    let mut events = a.events();
    for round in 0..3 {
        let before = a.lease().unwrap();
        etcd.revoke(before).await.unwrap();
        // Said while it is not listed, or not known to be.
        let addr = format!("a-{round}");
        a.update(&addr, Value::Null).await.unwrap();
        assert_eq!(
            heard(&mut events).await,
            Some(RegistrationEvent::Lapsed(LeaseLost::Revoked))
        );
        let Some(RegistrationEvent::Restored { lease }) = heard(&mut events).await else {
            panic!("it is not restored");
        };
        assert!(lease != before && a.lease() == Some(lease));
        let found = etcd.get("web/a").await.unwrap();
        assert_eq!(found.first().unwrap().lease, lease);
        until("it is found again", || addrs(&web.instances()) == [&addr]).await;
    }
    a.unregister().await.unwrap();
    assert_eq!(heard(&mut events).await, None);
    until("it is not found any more", || web.instances().is_empty()).await;
    until_async("no lease is left", async || {
        etcd.leases().await.unwrap().leases.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_newer_instance_has_the_key_and_the_former_is_told_and_never_takes_it_back() {
    let (_cluster, etcd) = cluster_and_client().await;
    let former = etcd.register("web", "a").ttl(LONG).await.unwrap();
    let mut events = former.events();
    let newer = etcd.register("web", "a").metadata(2).ttl(LONG);
    let newer = newer.await.unwrap();
    assert_eq!(heard(&mut events).await, Some(RegistrationEvent::Taken));
    assert_eq!(heard(&mut events).await, None, "nothing follows");
    assert_eq!(former.lease(), None);
    let late = former.update("a", 1).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::SessionLost);
    // Who listens only now is told the same.
    let told: Vec<_> = former.events().collect().await;
    assert_eq!(told, [RegistrationEvent::Taken]);
    let found = etcd.get("web/a").await.unwrap();
    assert_eq!(found.first().unwrap().lease, newer.lease().unwrap());
    until_async("the former one's lease is revoked", async || {
        etcd.leases().await.unwrap().leases == [newer.lease().unwrap()]
    })
    .await;
    newer.unregister().await.unwrap();
    former.unregister().await.unwrap();
    assert_eq!(etcd.get("web/").prefix().await.unwrap().count, 0);
}

#[tokio::test]
async fn an_update_never_overwrites_a_newer_instance_it_has_not_heard_of() {
    let (cluster, etcd) = cluster_and_client().await;
    let direct = Client::connect(cluster.direct_endpoints()).await.unwrap();
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
async fn an_instance_whose_key_is_deleted_by_hand_is_told_and_over() {
    let (_cluster, etcd) = cluster_and_client().await;
    let a = etcd.register("web", "a").ttl(LONG).await.unwrap();
    let mut events = a.events();
    etcd.delete("web/a").await.unwrap();
    assert_eq!(heard(&mut events).await, Some(RegistrationEvent::Taken));
    assert_eq!(etcd.get("web/a").await.unwrap().count, 0);
    a.unregister().await.unwrap();
}

#[actix::test]
async fn services_are_registered_and_discovered_by_message() {
    let (cluster, client) = cluster_and_client().await;
    let etcd = Etcd::new(client.clone()).start();
    let (heard, ear_of_all) = ear::<DiscoveryEvent>();
    // Nobody waits for the answer: it goes on all the same.
    etcd.do_send(discover("web").deliver_to(ear_of_all));
    let (some, ear_of_some) = ear::<DiscoveryEvent>();
    let observing = etcd.send(discover("web").deliver_to(ear_of_some)).await;
    let observing = observing.unwrap().unwrap();
    let a = etcd.send(register("web", "a").ttl(LONG)).await;
    let a = a.unwrap().unwrap();
    etcd.do_send(register("web", "b").ttl(LONG));
    let last = |heard: &Vec<DiscoveryEvent>| match heard.last() {
        Some(DiscoveryEvent::Changed(change)) => addrs(&change.instances).join(" "),
        Some(event) => format!("{event:?}"),
        None => String::new(),
    };
    for heard in [&heard, &some] {
        until("both are heard of", || {
            last(&heard.lock().unwrap()) == "a b"
        })
        .await;
    }
    drop(observing);
    let (news, ear_of_news) = ear::<RegistrationEvent>();
    let _told = a.deliver_to(ear_of_news);
    client.revoke(a.lease().unwrap()).await.unwrap();
    until("it is told of its loss and its return", || {
        matches!(
            news.lock().unwrap()[..],
            [
                RegistrationEvent::Lapsed(_),
                RegistrationEvent::Restored { .. }
            ]
        )
    })
    .await;
    a.unregister().await.unwrap();
    until("the first one is gone", || {
        last(&heard.lock().unwrap()) == "b"
    })
    .await;
    assert_eq!(last(&some.lock().unwrap()), "a b", "not told any more");

    let refused = etcd.send(register("", "a")).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let found = etcd.send(get("web/b")).await.unwrap().unwrap();
    assert_eq!(found.count, 1);
    client.shutdown().await;
    until("the end is told", || {
        let heard = heard.lock().unwrap();
        matches!(heard.last(), Some(DiscoveryEvent::Ended(error)) if error.kind() == ErrorKind::Shutdown)
    })
    .await;
    let other = Client::connect(cluster.endpoints()).await.unwrap();
    until_async(
        "what was registered by message ends with its client",
        async || other.get("web/").prefix().await.unwrap().count == 0,
    )
    .await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let (_cluster, etcd) = cluster_and_client().await;
    let kind = |error: actix_etcd::Error| error.kind();
    let registered = etcd.register("web", "").await;
    assert_eq!(
        registered.map_err(kind).unwrap_err(),
        ErrorKind::InvalidArgument
    );
    let registered = etcd.register("web", "a").id("").await;
    assert_eq!(
        registered.map_err(kind).unwrap_err(),
        ErrorKind::InvalidArgument
    );
    let found = etcd.discover("").await;
    assert_eq!(found.map_err(kind).unwrap_err(), ErrorKind::InvalidArgument);
    assert!(etcd.leases().await.unwrap().leases.is_empty());
}
