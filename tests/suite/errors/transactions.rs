//! Rejected transactions on every release of etcd: the outcome of the error is true on every member.

use actix_etcd::{
    Client, ErrorKind, Outcome,
    kv::{Compare, Txn, delete, get, put, txn},
};
use testbed::{Cluster, VERSIONS};

use crate::support::wait::{TEST_TIMEOUT, until_async};

/// A revision that the cluster does not reach in the test.
const FUTURE: i64 = 1_000_000;

/// A cluster with the compacted key `other`, and the user `ann`, who may use the keys below `ann/` only.
struct TestCluster {
    _cluster: Cluster,
    /// One client of user `root` per member.
    members: Vec<Client>,
    /// A client of user `ann`, connected to the first member.
    ann: Client,
}

impl TestCluster {
    async fn start(version: &str) -> Self {
        let cluster = Cluster::builder().version(version).members(3).start().await;
        let etcd = Client::connect(cluster.endpoints()).await.unwrap();
        etcd.put("other", "1").await.unwrap();
        let revision = etcd.put("other", "2").await.unwrap().header.revision;
        etcd.compact(revision).await.unwrap();
        cluster.add_user("ann", "word", Some("ann/")).await;
        cluster.enable_auth("root", "secret").await;
        let endpoints = cluster.endpoints();
        let connect = |endpoint: &String, user, password| {
            Client::builder([endpoint.clone()])
                .credentials(user, password)
                .request_timeout(TEST_TIMEOUT)
                .connect()
        };
        let mut members = Vec::new();
        for endpoint in &endpoints {
            members.push(connect(endpoint, "root", "secret").await.unwrap());
        }
        let ann = connect(&endpoints[0], "ann", "word").await.unwrap();
        Self {
            _cluster: cluster,
            members,
            ann,
        }
    }

    /// Returns on how many members the key exists, after all earlier requests were applied on all members.
    async fn members_with_key(&self, key: &str) -> usize {
        self.members[0].put("barrier", key).await.unwrap();
        let mut count = 0;
        for member in &self.members {
            until_async("the member has applied all requests", async || {
                let found = member.get("barrier").serializable().await.unwrap();
                found.kvs.iter().any(|kv| kv.value_str() == Ok(key))
            })
            .await;
            let found = member.get(key).serializable().await.unwrap();
            count += found.kvs.len();
        }
        count
    }
}

/// Before 3.7, the members that did not receive such a request would apply it.
#[tokio::test]
async fn write_with_read_at_revision_is_not_sent() {
    let reads = || [get("other").revision(FUTURE), get("other").revision(1)];
    for version in VERSIONS {
        let test = TestCluster::start(version).await;
        let root = &test.members[0];
        for read in reads() {
            let write = || put("ann/k", "v");
            for refused in [
                txn().then((write(), read.clone())),
                txn().then((read.clone(), delete("other"), write())),
                txn().then((txn().then(write()), read.clone())),
                txn()
                    .when(Compare::version("none").gt(0))
                    .otherwise((write(), read.clone())),
            ] {
                let error = refused.on(root).await.unwrap_err();
                let found = (error.kind(), error.outcome());
                assert_eq!(
                    found,
                    (ErrorKind::InvalidArgument, Outcome::NotSent),
                    "{version}"
                );
            }
            let nested = txn().then((write(), txn().then(read)));
            let error = nested.on(root).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Rejected, "{version}: {error}");
        }
        assert_eq!(test.members_with_key("ann/k").await, 0, "{version}");
    }
}

#[tokio::test]
async fn denied_read_makes_outcome_of_write_unknown() {
    for version in VERSIONS {
        let test = TestCluster::start(version).await;
        let write = || put("ann/split", "v");
        for denied in [
            txn().then((write(), get("other"))),
            txn().then(write()).otherwise(get("other")),
            txn().then((txn().then(write()), get("other"))),
        ] {
            let error = denied.on(&test.ann).await.unwrap_err();
            let found = (error.kind(), error.outcome());
            assert_eq!(
                found,
                (ErrorKind::PermissionDenied, Outcome::Unknown),
                "{version}"
            );
            assert!(
                error
                    .to_string()
                    .contains("other members may have applied it"),
                "{error}"
            );
            assert_eq!(error.attempts(), 1, "{version}");
        }
        let applied = test.members_with_key("ann/split").await;
        let expected = if version == "3.7" { 0 } else { 2 };
        assert_eq!(applied, expected, "{version}");
    }
}

#[tokio::test]
async fn rejected_transaction_is_applied_on_no_member() {
    for version in VERSIONS {
        let test = TestCluster::start(version).await;
        let (root, ann) = (&test.members[0], &test.ann);
        let write = || put("ann/k", "v");
        let future = || get("other").revision(FUTURE);
        let unread = || Compare::version("other").gt(0);
        let cases: [(ErrorKind, &Client, Txn); 8] = [
            (
                ErrorKind::LeaseNotFound,
                root,
                txn().then((write(), put("a", "v").lease(1), get("other"))),
            ),
            (
                ErrorKind::KeyNotFound,
                root,
                txn().then((write(), put("none", "").ignore_value(), get("other"))),
            ),
            (
                ErrorKind::KeyNotFound,
                root,
                txn().then((write(), put("none", "v").ignore_lease())),
            ),
            (
                ErrorKind::FutureRevision,
                root,
                txn().then((write(), txn().then(future()))),
            ),
            (
                ErrorKind::FutureRevision,
                root,
                txn()
                    .when(Compare::version("none").gt(0))
                    .then(write())
                    .otherwise(future()),
            ),
            (
                ErrorKind::PermissionDenied,
                ann,
                txn().then((write(), put("other", "v"))),
            ),
            (
                ErrorKind::PermissionDenied,
                ann,
                txn().then((write(), txn().then(get("other")))),
            ),
            (
                ErrorKind::PermissionDenied,
                ann,
                txn().when(unread()).then((write(), get("other"))),
            ),
        ];
        for (kind, client, rejected) in cases {
            let error = rejected.on(client).await.unwrap_err();
            let found = (error.kind(), error.outcome());
            assert_eq!(found, (kind, Outcome::Rejected), "{version}: {error}");
        }
        assert_eq!(test.members_with_key("ann/k").await, 0, "{version}");
    }
}
