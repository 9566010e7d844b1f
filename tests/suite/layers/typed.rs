//! Values of types of the application.

use std::collections::HashSet;

use actix::Actor;
use actix_etcd::{
    Client, ErrorKind, Etcd, Outcome,
    layers::{
        codec::{Codec, CodecError, Json, Utf8},
        typed::{
            KeyChanged, Typed, TypedChange, TypedCreateOutcome, TypedModifyOutcome,
            TypedRemoveOutcome, TypedUpdateOutcome, TypedWatch, TypedWatchEvent, typed,
        },
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use testbed::Cluster;
use tokio::time::timeout;

use crate::support::{
    connected_cluster::StartWithClient,
    message_recorder::record_messages,
    wait::{TEST_TIMEOUT, until},
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct User {
    name: String,
    visits: u64,
}

fn user(name: &str) -> User {
    User {
        name: name.into(),
        visits: 0,
    }
}

/// Encodes nothing but zero.
struct OnlyZero;

impl Codec<u32> for OnlyZero {
    fn encode(value: &u32) -> Result<Bytes, CodecError> {
        match value {
            0 => Ok(Bytes::from_static(b"0")),
            _ => Err("only zero can be encoded".into()),
        }
    }

    fn decode(value: &[u8]) -> Result<u32, CodecError> {
        Utf8::decode(value)
    }
}

async fn next<T, C: Codec<T>>(watch: &mut TypedWatch<T, C>) -> TypedWatchEvent<T> {
    let next = timeout(TEST_TIMEOUT, watch.next()).await;
    next.expect("no item in time").expect("the watch has ended")
}

/// Returns the changes of the next revision.
async fn next_changes<T, C: Codec<T>>(watch: &mut TypedWatch<T, C>) -> Vec<KeyChanged<T>> {
    loop {
        match next(watch).await {
            TypedWatchEvent::Changed(changes) => return changes.changes,
            TypedWatchEvent::Ended(end) => panic!("{end}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn entry_is_created_updated_and_removed() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let users = etcd.typed::<User, Json>("users/");
    assert_eq!(users.get("7").await.unwrap(), None);
    let created = users.create("7", &user("Ada")).await.unwrap();
    let mut ada = users.get("7").await.unwrap().unwrap();
    assert_eq!((ada.id_str(), &ada.key[..]), (Some("7"), &b"users/7"[..]));
    assert_eq!(
        (created.revision(), ada.version),
        (Some(ada.mod_revision), 1)
    );
    assert_eq!(ada.value, user("Ada"));
    match users.create("7", &user("Eve")).await.unwrap() {
        TypedCreateOutcome::Exists(Ok(exists)) => assert_eq!(exists, ada),
        other => panic!("{other:?}"),
    }

    let stale = ada.clone();
    ada.value.visits = 1;
    let updated = users.update(&ada).await.unwrap().revision().unwrap();
    match users.update(&stale).await.unwrap() {
        TypedUpdateOutcome::Conflict(Some(Ok(current))) => {
            assert_eq!((current.mod_revision, current.value.visits), (updated, 1));
        }
        other => panic!("{other:?}"),
    }
    match users.remove(&stale).await.unwrap() {
        TypedRemoveOutcome::Conflict(Some(Ok(current))) => assert_eq!(current.value.visits, 1),
        other => panic!("{other:?}"),
    }
    ada.mod_revision = updated;
    assert!(users.remove(&ada).await.unwrap().revision().is_some());
    assert!(matches!(
        users.update(&ada).await.unwrap(),
        TypedUpdateOutcome::Conflict(None)
    ));
    let other = etcd.typed::<User, Json>("others/");
    let error = other.update(&ada).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn update_keeps_the_lease_unless_another_is_set() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let limits = etcd.typed::<u32, Utf8>("limits/");
    let (first, second) = (
        etcd.lease(TEST_TIMEOUT).await.unwrap().id(),
        etcd.lease(TEST_TIMEOUT).await.unwrap().id(),
    );
    limits.create("a", &1).lease(first).await.unwrap();
    let mut entry = limits.get("a").await.unwrap().unwrap();
    assert_eq!(entry.lease, first);
    entry.value = 2;
    limits.update(&entry).await.unwrap();
    let entry = limits.get("a").await.unwrap().unwrap();
    assert_eq!((entry.value, entry.lease), (2, first));
    limits.update(&entry).lease(second).await.unwrap();
    assert_eq!(limits.get("a").await.unwrap().unwrap().lease, second);
    limits.put("a", &3).await.unwrap();
    assert_eq!(limits.get("a").await.unwrap().unwrap().lease, 0);
}

#[tokio::test]
async fn concurrent_modifications_are_all_applied() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let users = etcd.typed::<User, Json>("users/");
    let visit = |current: Option<User>| {
        let current = current.unwrap_or_else(|| user("Ada"));
        User {
            visits: current.visits + 1,
            ..current
        }
    };
    let modifications = (0..20).map(|_| tokio::spawn(users.modify("7", visit).into_future()));
    let modifications: Vec<_> = modifications.collect();
    let mut revisions = HashSet::new();
    for modification in modifications {
        revisions.extend(modification.await.unwrap().unwrap().revision());
    }
    assert_eq!(revisions.len(), 20);
    assert_eq!(users.get("7").await.unwrap().unwrap().value.visits, 20);

    let kept = users.modify("7", |_| TypedChange::Keep).await.unwrap();
    assert!(matches!(kept, TypedModifyOutcome::Kept(Some(Ok(entry))) if entry.value.visits == 20));
    let failed = users.modify("7", |_| {
        let error = actix_etcd::Error::new(ErrorKind::Other, Outcome::NotSent, "not allowed");
        TypedChange::Fail(error)
    });
    assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::Other);
    users.modify("7", |_| TypedChange::Remove).await.unwrap();
    assert_eq!(users.get("7").await.unwrap(), None);
}

#[tokio::test]
async fn failing_codec_writes_nothing() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    let numbers = etcd.typed::<u32, OnlyZero>("n/");
    numbers.create("a", &0).without_marker().await.unwrap();
    let mut entry = numbers.get("a").await.unwrap().unwrap();
    entry.value = 1;
    let before = cluster.revision().await;
    let failures = [
        numbers.create("b", &1).await.map(drop).unwrap_err(),
        numbers.put("a", &1).await.map(drop).unwrap_err(),
        numbers.update(&entry).await.map(drop).unwrap_err(),
        numbers.modify("a", |_| 1).await.map(drop).unwrap_err(),
    ];
    for error in failures {
        assert_eq!(error.kind(), ErrorKind::CodecFailed);
        assert_eq!(error.outcome(), Outcome::NotSent);
        let text = error.to_string();
        assert!(
            text.contains("`n/") && text.contains("only zero can be encoded"),
            "{text}"
        );
    }
    assert_eq!(cluster.revision().await, before);
}

/// Puts values of which only `a` and `c` decode.
async fn numbers_with_undecodable(etcd: &Client) -> Typed<u32, Utf8, Client> {
    for (key, value) in [("n/a", "1"), ("n/b", "one"), ("n/c", "3")] {
        etcd.put(key, value).await.unwrap();
    }
    etcd.typed::<u32, Utf8>("n/")
}

#[tokio::test]
async fn undecodable_value_is_an_item_of_the_list() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let numbers = numbers_with_undecodable(&etcd).await;
    let listing = numbers.list().await.unwrap();
    assert_eq!(listing.items.len(), 3);
    let values: Vec<_> = listing
        .entries()
        .map(|entry| (entry.id(), entry.value))
        .collect();
    assert_eq!(values, [(&b"a"[..], 1), (&b"c"[..], 3)]);
    let undecoded: Vec<_> = listing.undecoded().collect();
    assert_eq!(
        (undecoded[0].id_str(), &undecoded[0].value[..]),
        (Some("b"), &b"one"[..])
    );
    assert_eq!(undecoded[0].mod_revision, listing.revision - 1);
    assert_eq!(undecoded[0].error.kind(), ErrorKind::CodecFailed);
    assert!(listing.into_entries().is_err());

    let mut stream = numbers.list().stream();
    let mut ids = Vec::new();
    while let Some(item) = stream.next().await {
        ids.push(item.unwrap().map(|entry| entry.value).ok());
    }
    assert_eq!(ids, [Some(1), None, Some(3)]);

    // Operations on the value itself fail, and write nothing.
    assert_eq!(
        numbers.get("b").await.unwrap_err().kind(),
        ErrorKind::CodecFailed
    );
    let modified = numbers.modify("b", |_| 2).await.unwrap_err();
    assert_eq!(modified.kind(), ErrorKind::CodecFailed);
    assert!(matches!(
        numbers.create("b", &2).await.unwrap(),
        TypedCreateOutcome::Exists(Err(undecoded)) if undecoded.value == "one"
    ));
    assert_eq!(etcd.get("n/b").await.unwrap().value().unwrap(), "one");
}

#[tokio::test]
async fn undecodable_value_is_an_item_of_the_watch() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let numbers = etcd.typed::<u32, Utf8>("n/");
    let mut watch = numbers.watch().previous().await.unwrap();
    numbers.put("a", &1).await.unwrap();
    etcd.put("n/a", "one").await.unwrap();
    numbers.put("a", &2).await.unwrap();
    etcd.delete("n/a").await.unwrap();
    let mut changes = Vec::new();
    for _ in 0..4 {
        changes.append(&mut next_changes(&mut watch).await);
    }
    let [first, second, third, fourth] = &changes[..] else {
        panic!("{changes:?}");
    };
    assert!(
        matches!(first, KeyChanged::Put { entry: Ok(entry), previous: None } if entry.value == 1)
    );
    assert!(matches!(
        second,
        KeyChanged::Put { entry: Err(undecoded), previous: Some(Ok(previous)) }
            if undecoded.value == "one" && previous.value == 1
    ));
    assert!(matches!(
        third,
        KeyChanged::Put { entry: Ok(entry), previous: Some(Err(_)) } if entry.value == 2
    ));
    assert!(matches!(
        fourth,
        KeyChanged::Deleted { previous: Some(Ok(previous)), .. } if previous.value == 2
    ));
    assert!(changes.iter().all(|change| change.key() == "n/a"));
}

#[tokio::test]
async fn list_and_watch_have_no_gap() {
    const WRITES: u32 = 300;
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let numbers = etcd.typed::<u32, Utf8>("n/");
    numbers.put("a", &0).await.unwrap();
    let writer = numbers.clone();
    let writing = tokio::spawn(async move {
        for n in 1..=WRITES {
            writer.put("a", &n).without_marker().await.unwrap();
        }
    });
    for ids in [None, Some("a")] {
        let request = match ids {
            None => numbers.list_and_watch(),
            Some(id) => numbers.watch_id(id).list_first(),
        };
        let mut watch = request.await.unwrap();
        let TypedWatchEvent::Listed(listing) = next(&mut watch).await else {
            panic!("the first item is no list");
        };
        let mut value = listing.entries().next().unwrap().value;
        while value < WRITES {
            for change in next_changes(&mut watch).await {
                let next = change.entry().unwrap().value;
                assert_eq!(next, value + 1);
                value = next;
            }
        }
        assert!(watch.revision() >= listing.revision);
    }
    writing.await.unwrap();
}

#[tokio::test]
async fn list_first_rejects_a_start_revision() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let numbers = etcd.typed::<u32, Utf8>("n/");
    for request in [
        numbers.list_and_watch().start_revision(1),
        numbers
            .watch()
            .options(|watch| watch.start_revision(1))
            .list_first(),
    ] {
        let error = request.await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.outcome(), Outcome::NotSent);
    }
}

#[tokio::test]
async fn typed_values_stay_in_their_namespace() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let tenant = etcd.namespace("t/").unwrap();
    let (plain, numbers) = (
        etcd.typed::<u32, Utf8>("n/"),
        tenant.typed::<u32, Utf8>("n/"),
    );
    plain.put("a", &100).await.unwrap();
    let mut watch = numbers.list_and_watch().previous().await.unwrap();
    assert!(matches!(
        next(&mut watch).await,
        TypedWatchEvent::Listed(listing) if listing.items.is_empty()
    ));
    numbers.create("a", &1).await.unwrap();
    let mut entry = numbers.get("a").await.unwrap().unwrap();
    assert_eq!((&entry.key[..], entry.id_str()), (&b"n/a"[..], Some("a")));
    entry.value = 2;
    numbers.update(&entry).await.unwrap();
    plain.put("a", &101).await.unwrap();
    numbers.modify("a", |n| n.unwrap_or(0) + 1).await.unwrap();
    for (value, before) in [(1, None), (2, Some(1)), (3, Some(2))] {
        let changes = next_changes(&mut watch).await;
        let [
            KeyChanged::Put {
                entry: Ok(entry),
                previous,
            },
        ] = &changes[..]
        else {
            panic!("{changes:?}");
        };
        assert_eq!((&entry.key[..], entry.value), (&b"n/a"[..], value));
        let previous = previous
            .as_ref()
            .map(|previous| previous.as_ref().unwrap().value);
        assert_eq!(previous, before);
    }
    let whole = etcd.typed::<u32, Utf8>("t/n/");
    assert_eq!(whole.get("a").await.unwrap().unwrap().value, 3);
    let entry = numbers.get("a").await.unwrap().unwrap();
    numbers.remove(&entry).await.unwrap();
    assert_eq!(plain.get("a").await.unwrap().unwrap().value, 101);
    let listing = numbers.list().await.unwrap();
    assert!(listing.items.is_empty());
}

#[tokio::test]
async fn write_is_fenced_by_a_lock() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let numbers = etcd.typed::<u32, Utf8>("n/");
    let mutex = etcd.mutex("lock").await.unwrap();
    let guard = mutex.lock().await.unwrap();
    let ownership = (*guard).clone();
    numbers.put("a", &1).fenced_by(&guard).await.unwrap();
    let entry = numbers.get("a").await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    let fenced = [
        numbers.put("a", &2).fenced_by(&ownership).await.map(drop),
        numbers.update(&entry).fenced_by(&ownership).await.map(drop),
        numbers
            .modify("a", |_| 2)
            .fenced_by(&ownership)
            .await
            .map(drop),
    ];
    for error in fenced {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::LockLost);
    }
    assert_eq!(numbers.get("a").await.unwrap().unwrap(), entry);
}

#[actix_rt::test]
async fn typed_requests_are_messages() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let actor = Etcd::new(etcd).start();
    let numbers = typed::<u32, Utf8>("n/");
    let (events, recipient) = record_messages::<TypedWatchEvent<u32>>();
    let subscribe = numbers.list_and_watch().deliver_to(recipient);
    let _subscription = actor.send(subscribe).await.unwrap().unwrap();
    actor.send(numbers.create("a", &1)).await.unwrap().unwrap();
    actor
        .send(numbers.modify("a", |n| n.unwrap_or(0) + 1))
        .await
        .unwrap()
        .unwrap();
    let entry = actor
        .send(numbers.get("a"))
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(entry.value, 2);
    actor.send(numbers.remove(&entry)).await.unwrap().unwrap();
    assert!(
        actor
            .send(numbers.list())
            .await
            .unwrap()
            .unwrap()
            .items
            .is_empty()
    );
    until("all events are delivered", || {
        events.lock().unwrap().len() == 4
    })
    .await;
    let events = events.lock().unwrap();
    assert!(matches!(&events[0], TypedWatchEvent::Listed(listing) if listing.items.is_empty()));
    assert!(matches!(
        &events[3],
        TypedWatchEvent::Changed(last) if matches!(last.changes[..], [KeyChanged::Deleted { .. }])
    ));
}
