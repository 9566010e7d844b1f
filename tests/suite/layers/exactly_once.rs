//! Exactly-once and conditional writes on real clusters.

use std::time::Duration;

use actix::Actor;
use actix_etcd::{
    Client, ErrorKind, Etcd, Outcome,
    kv::{Compare, OpResponse, delete, get, put, txn},
    layers::conditional_write::{
        Change, CreateOutcome, ModifyOutcome, RemoveOutcome, UpdateOutcome, create, modify,
    },
};
use testbed::{Cluster, Direction, Fault};
use tokio::task::JoinSet;

use crate::support::{
    auth_cluster::{connect_as, start_with_auth},
    connected_cluster::{StartWithClient, connect},
    wait::{TEST_TIMEOUT, until, until_async},
};

const MARKERS: &str = "actix-etcd/markers/";

/// Returns the number of markers in etcd.
async fn marker_count(etcd: &Client) -> i64 {
    let found = etcd.get(MARKERS).prefix().count_only().await.unwrap();
    found.count
}

#[tokio::test]
async fn writes_return_revision_and_response() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("k", "1").await.unwrap();
    let put_again = etcd.put("k", "2").prev_kv().exactly_once().await.unwrap();
    let response = put_again.response.unwrap();
    assert_eq!(response.prev_kv.unwrap().value, "1");
    assert_eq!(response.header.revision, put_again.revision);
    let kv = etcd.get("k").await.unwrap().kvs.remove(0);
    assert_eq!(kv.mod_revision, put_again.revision);

    for (expected, succeeded) in [("2", true), ("x", false)] {
        let applied = etcd
            .txn()
            .when(Compare::value("k").eq(expected))
            .then((get("k"), put("then", "t")))
            .otherwise(put("otherwise", "o"))
            .exactly_once()
            .await
            .unwrap();
        assert_eq!(applied.succeeded, succeeded);
        let response = applied.response.unwrap();
        assert_eq!(response.succeeded, succeeded);
        assert_eq!(response.responses.len(), if succeeded { 2 } else { 1 });
        if succeeded {
            assert!(
                matches!(&response.responses[0], OpResponse::Get(found) if found.kvs.len() == 1)
            );
        }
    }
    let deleted = etcd.delete("k").exactly_once().await.unwrap();
    assert_eq!(deleted.response.unwrap().deleted, 1);
}

#[tokio::test]
async fn slots_are_reused_and_deleted_at_the_end() {
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    for n in 0..20 {
        etcd.put("k", n.to_string()).exactly_once().await.unwrap();
    }
    assert_eq!(marker_count(&etcd).await, 1);
    let mut writes = JoinSet::new();
    for n in 0..100 {
        let write = etcd.put(format!("k/{n}"), "v").exactly_once();
        writes.spawn(write.into_future());
    }
    while let Some(written) = writes.join_next().await {
        written.unwrap().unwrap();
    }
    // A slot that is created for one write can be taken by another one.
    assert!(marker_count(&etcd).await <= 200);
    assert_eq!(etcd.leases().await.unwrap().leases.len(), 1);
    etcd.shutdown().await;
    let other = connect(cluster.endpoints()).await;
    assert_eq!(marker_count(&other).await, 0);
    assert!(other.leases().await.unwrap().leases.is_empty());
}

#[tokio::test]
async fn revoked_lease_of_markers_is_replaced() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("k", "0").exactly_once().await.unwrap();
    for version in 2..5 {
        let lease = etcd.leases().await.unwrap().leases[0];
        etcd.revoke(lease).await.unwrap();
        let applied = etcd.put("k", "v").exactly_once().await.unwrap();
        assert!(applied.response.is_some());
        let kv = etcd.get("k").await.unwrap().kvs.remove(0);
        assert_eq!((kv.version, kv.mod_revision), (version, applied.revision));
    }
    // A lease of the user that does not exist is an error, and not taken for that of the markers.
    let unknown_lease = etcd.put("k", "v").lease(12345).exactly_once().await;
    let error = unknown_lease.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::LeaseNotFound, Outcome::Rejected)
    );
}

#[tokio::test]
async fn writes_dropped_in_an_outage_leave_few_slots() {
    const DROPPED: usize = 300;
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    etcd.put("k", "v").exactly_once().await.unwrap();
    let link = cluster.member(0).client_link().clone();
    link.set(Fault::Refuse);
    for n in 0..DROPPED {
        let write = etcd.put(format!("dropped/{n}"), "v").exactly_once();
        let limit = Duration::from_millis(2);
        let ended = tokio::time::timeout(limit, write).await;
        assert!(!matches!(ended, Ok(Ok(_))), "the member is not reachable");
    }
    link.heal();
    let write = etcd.put("k", "v").exactly_once().timeout(TEST_TIMEOUT);
    write.await.unwrap();
    // Each of them would have left a slot.
    assert!(marker_count(&etcd).await < 100);
    assert_eq!(etcd.get("dropped/").prefix().await.unwrap().count, 0);
}

#[tokio::test]
async fn read_of_a_denied_key_does_not_split_the_write() {
    let builder = Cluster::builder().members(3);
    let cluster = start_with_auth(builder).await;
    cluster.add_user("app", "secret", Some("app/")).await;
    let builder = Client::builder(cluster.endpoints()).credentials("app", "secret");
    let etcd = builder
        .marker_prefix("app/markers/")
        .connect()
        .await
        .unwrap();
    for n in 0..6 {
        let write = etcd.txn().then((put("app/k", "v"), get("other")));
        let error = write.exactly_once().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::PermissionDenied, Outcome::Rejected)
        );
        // The slot of the denied write is used again, through another member.
        etcd.put(format!("app/{n}"), "v")
            .exactly_once()
            .await
            .unwrap();
    }
    for member in cluster.member_endpoints() {
        let builder = Client::builder([member]).credentials("app", "secret");
        let only = builder.connect().await.unwrap();
        let found = only
            .get("app/")
            .range("app/a")
            .serializable()
            .keys_only()
            .await;
        assert_eq!(found.unwrap().kvs.len(), 6, "the members differ");
        assert_eq!(only.get("app/k").serializable().await.unwrap().count, 0);
    }
}

#[tokio::test]
async fn conditional_writes_return_their_outcome() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let CreateOutcome::Created { revision } = etcd.create("k", "1").await.unwrap() else {
        panic!("the key did not exist");
    };
    let exists = etcd.create("k", "2").await.unwrap();
    assert!(matches!(exists, CreateOutcome::Exists(kv) if kv.mod_revision == revision));
    let missing = etcd.update("missing", "2").await.unwrap();
    assert_eq!(missing, UpdateOutcome::Conflict(None));
    let updated = etcd.update("k", "2").at(revision).await.unwrap();
    let second = updated.revision().unwrap();
    let conflict = etcd.update("k", "3").at(revision).await.unwrap();
    assert!(matches!(conflict, UpdateOutcome::Conflict(Some(kv)) if kv.value == "2"));
    let third = etcd.update("k", "3").await.unwrap().revision().unwrap();
    let conflict = etcd.remove("k").at(second).await.unwrap();
    assert!(matches!(conflict, RemoveOutcome::Conflict(Some(kv)) if kv.value == "3"));
    let removed = etcd.remove("k").at(third).await.unwrap();
    assert!(removed.revision().unwrap() > third);
    assert_eq!(
        etcd.remove("k").await.unwrap(),
        RemoveOutcome::Conflict(None)
    );
}

#[tokio::test]
async fn updates_keep_the_lease_unless_changed() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let lease = etcd.lease(Duration::from_secs(60)).await.unwrap();
    etcd.create("k", "1").lease(&lease).await.unwrap();
    let lease_of_k = async || etcd.get("k").await.unwrap().kvs[0].lease;
    etcd.update("k", "2").await.unwrap();
    assert_eq!(lease_of_k().await, lease.id());
    etcd.modify("k", |_| "3").await.unwrap();
    assert_eq!(lease_of_k().await, lease.id());
    etcd.update("k", "4").lease(0).await.unwrap();
    assert_eq!(lease_of_k().await, 0);
    etcd.modify("k", |_| "5").lease(&lease).await.unwrap();
    assert_eq!(lease_of_k().await, lease.id());
}

#[tokio::test]
async fn concurrent_modifications_are_all_applied() {
    const TASKS: u64 = 16;
    const EACH: u64 = 10;
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let etcd = etcd.clone();
        tasks.spawn(async move {
            for _ in 0..EACH {
                let increment = etcd.modify("n", |current| {
                    let n: u64 = current.map_or(0, |kv| kv.value_str().unwrap().parse().unwrap());
                    (n + 1).to_string()
                });
                increment
                    .timeout(TEST_TIMEOUT)
                    .max_attempts(10_000)
                    .await
                    .unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let kv = etcd.get("n").await.unwrap().kvs.remove(0);
    assert_eq!(kv.value_str().unwrap(), (TASKS * EACH).to_string());
    assert_eq!(kv.version, i64::try_from(TASKS * EACH).unwrap());
}

#[tokio::test]
async fn modification_may_remove_keep_or_fail() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let kept = etcd.modify("k", |_| Change::Keep).await.unwrap();
    assert_eq!(kept, ModifyOutcome::Kept(None));
    let nothing_to_remove = etcd.modify("k", |_| Change::Remove).await.unwrap();
    assert_eq!(nothing_to_remove, ModifyOutcome::Kept(None));
    etcd.modify("k", |_| "1").await.unwrap();
    let failed = etcd.modify("k", |_| -> Result<Change, actix_etcd::Error> {
        Err(actix_etcd::Error::new(
            ErrorKind::CodecFailed,
            Outcome::NotSent,
            "not a number",
        ))
    });
    assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::CodecFailed);
    let removed = etcd.modify("k", |_| Change::Remove).await.unwrap();
    assert!(matches!(removed, ModifyOutcome::Removed { .. }));
    assert_eq!(etcd.get("k").await.unwrap().count, 0);
}

#[tokio::test]
async fn modification_ends_after_its_attempts() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let writer = etcd.clone();
    // Every call of the function is followed by a write of somebody else.
    let modified = etcd.modify("k", move |_| {
        let writer = writer.clone();
        let other = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime
                .unwrap()
                .block_on(writer.put("k", "other").into_future())
                .unwrap();
        });
        other.join().unwrap();
        "mine"
    });
    let error = modified.max_attempts(3).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::Conflict, Outcome::Rejected)
    );
    let kv = etcd.get("k").await.unwrap().kvs.remove(0);
    assert_eq!((&kv.value[..], kv.version), (&b"other"[..], 3));
}

#[tokio::test]
async fn fenced_write_needs_its_lock() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let mutex = etcd.mutex("lock").await.unwrap();
    let guard = mutex.lock().await.unwrap();
    etcd.put("k", "1")
        .exactly_once()
        .fenced_by(&guard)
        .await
        .unwrap();
    let updated = etcd.update("k", "2").fenced_by(&guard).await.unwrap();
    assert!(updated.revision().is_some());
    let conflict = etcd.create("k", "3").fenced_by(&guard).await.unwrap();
    assert!(matches!(conflict, CreateOutcome::Exists(_)));
    let plain = etcd
        .update("k", "3")
        .without_marker()
        .fenced_by(&guard)
        .await
        .unwrap();
    assert!(plain.revision().is_some());
    etcd.delete(guard.key()).await.unwrap();
    let errors = [
        etcd.put("k", "4")
            .exactly_once()
            .fenced_by(&guard)
            .await
            .unwrap_err(),
        etcd.update("k", "4").fenced_by(&guard).await.unwrap_err(),
        etcd.update("k", "4")
            .without_marker()
            .fenced_by(&guard)
            .await
            .unwrap_err(),
        etcd.create("new", "4").fenced_by(&guard).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::LockLost, Outcome::Rejected)
        );
        assert!(error.to_string().contains("`lock/"), "{error}");
    }
    assert_eq!(etcd.get("k").await.unwrap().value(), Some(&b"3"[..].into()));
    assert_eq!(etcd.get("new").await.unwrap().count, 0);
}

#[tokio::test]
async fn invalid_write_is_refused_before_a_lease_is_granted() {
    let (_cluster, etcd) = Cluster::start_with_client(1).await;
    let errors = [
        etcd.put("", "v")
            .exactly_once()
            .await
            .map(drop)
            .unwrap_err(),
        etcd.create("", "v").await.map(drop).unwrap_err(),
        etcd.delete("")
            .from_key()
            .exactly_once()
            .await
            .map(drop)
            .unwrap_err(),
        etcd.update("k", "v").at(0).await.map(drop).unwrap_err(),
        etcd.remove("k").at(-1).await.map(drop).unwrap_err(),
        etcd.put("k", "v")
            .ignore_value()
            .exactly_once()
            .await
            .map(drop)
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
    }
    assert!(etcd.leases().await.unwrap().leases.is_empty());
    let builder = Client::builder(["http://127.0.0.1:1"]).marker_prefix("");
    let error = builder.connect_lazy().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn denied_markers_and_denied_keys_are_distinguished() {
    let cluster = start_with_auth(Cluster::builder()).await;
    cluster.add_user("app", "secret", Some("app/")).await;
    let etcd = connect_as(&cluster, "app", "secret").await;
    let error = etcd.put("app/k", "v").exactly_once().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::MarkersDenied, Outcome::NotSent)
    );
    let text = error.to_string();
    assert!(
        text.contains(MARKERS) && text.contains("marker_prefix"),
        "{text}"
    );
    assert_eq!(etcd.get("app/k").await.unwrap().count, 0);

    let builder = Client::builder(cluster.endpoints()).credentials("app", "secret");
    let etcd = builder
        .marker_prefix("app/markers/")
        .connect()
        .await
        .unwrap();
    etcd.put("app/k", "v").exactly_once().await.unwrap();
    let errors = [
        etcd.put("other", "v")
            .exactly_once()
            .await
            .map(drop)
            .unwrap_err(),
        etcd.create("other", "v").await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::PermissionDenied, Outcome::Rejected)
        );
    }
}

#[actix_rt::test]
async fn messages_are_applied_exactly_once() {
    let (_cluster, client) = Cluster::start_with_client(1).await;
    let etcd = Etcd::new(client).start();
    let applied = etcd
        .send(put("k", "1").exactly_once())
        .await
        .unwrap()
        .unwrap();
    let kv = etcd.send(get("k")).await.unwrap().unwrap().kvs.remove(0);
    assert_eq!(kv.mod_revision, applied.revision);
    let deleted = etcd
        .send(txn().then(delete("k")).exactly_once())
        .await
        .unwrap();
    assert!(deleted.unwrap().succeeded);
    let created = etcd.send(create("k", "2")).await.unwrap().unwrap();
    assert!(created.revision().is_some());
    let modified = etcd.send(modify("k", |_| "3")).await.unwrap().unwrap();
    assert!(modified.revision().is_some());
}

/// Sends a write whose response is lost. Returns its result, and how often the key was written.
async fn lose_response<T, F>(write: impl FnOnce(&Client) -> F) -> (actix_etcd::Result<T>, i64)
where
    T: Send + 'static,
    F: IntoFuture<Output = actix_etcd::Result<T>, IntoFuture: Send + 'static>,
{
    let (cluster, etcd) = Cluster::start_with_client(1).await;
    // The lease of the markers is granted before.
    etcd.put("first", "v").exactly_once().await.unwrap();
    let link = cluster.member(0).client_link().clone();
    let before = cluster.revision().await;
    link.set(Fault::HalfOpen(Direction::ToClient));
    let writing = tokio::spawn(write(&etcd).into_future());
    let applied = async || cluster.revision().await > before;
    until_async("the write is applied", applied).await;
    // The link blocks the response until the client has lost its connection.
    let accepted = link.accepted();
    link.reset_now();
    until("the client connects again", || link.accepted() > accepted).await;
    link.heal();
    let result = writing.await.unwrap();
    let found = etcd.get("k").await.unwrap();
    (result, found.kvs.first().map_or(0, |kv| kv.version))
}

#[tokio::test]
async fn lost_response_is_unknown_without_marker_and_resolved_with_it() {
    let plain = |etcd: &Client| etcd.put("k", "v").timeout(TEST_TIMEOUT);
    let (result, version) = lose_response(plain).await;
    assert_eq!(result.unwrap_err().outcome(), Outcome::Unknown);
    assert_eq!(version, 1);
    let marked = |etcd: &Client| etcd.put("k", "v").timeout(TEST_TIMEOUT).exactly_once();
    let (result, version) = lose_response(marked).await;
    assert_eq!(result.unwrap().response, None);
    assert_eq!(version, 1);
    let create = |etcd: &Client| etcd.create("k", "v").timeout(TEST_TIMEOUT);
    let (result, version) = lose_response(create).await;
    assert!(result.unwrap().revision().is_some());
    assert_eq!(version, 1);
}
