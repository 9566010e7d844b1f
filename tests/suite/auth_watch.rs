//! Watches whose tokens end, and users who lose their rights.

use std::time::Duration;

use actix_etcd::{Client, WatchEnd, roles::Permission};
use serde_json::json;
use testbed::{Cluster, Tokens, encode};
use tokio::time::{Instant, sleep};

use crate::{
    auth::logins,
    watch::{last_item, next},
};

async fn client(cluster: &Cluster, user: &str, password: &str) -> Client {
    let builder = Client::builder(cluster.endpoints()).auth(user, password);
    builder.connect().await.unwrap()
}

#[tokio::test]
async fn writers_and_watches_see_nothing_of_ten_expiries() {
    let ttl = Duration::from_secs(2);
    let cluster = Cluster::builder()
        .members(3)
        .tokens(Tokens::Jwt(ttl))
        .start()
        .await;
    cluster.enable_auth("root", "secret").await;
    let etcd = client(&cluster, "root", "secret").await;
    let before = logins(&cluster).await;
    let mut watches = Vec::new();
    for _ in 0..8 {
        watches.push(etcd.watch("k/").prefix().buffer(100_000).await.unwrap());
    }
    let until = Instant::now() + ttl * 11;
    let writers: Vec<_> = (0..64)
        .map(|writer| {
            let etcd = etcd.clone();
            tokio::spawn(async move {
                let mut last = 0;
                let mut writes = 0;
                while Instant::now() < until {
                    let put = etcd.put(format!("k/{writer}"), writes.to_string()).await?;
                    last = put.header.revision;
                    writes += 1;
                    sleep(Duration::from_millis(20)).await;
                }
                Ok::<_, actix_etcd::Error>((writes, last))
            })
        })
        .collect();
    // New watches come onto streams whose token has ended meanwhile.
    let newcomers = tokio::spawn({
        let etcd = etcd.clone();
        async move {
            while Instant::now() + ttl < until {
                let mut watch = etcd.watch("k/").prefix().await.unwrap();
                next(&mut watch).await;
                sleep(Duration::from_millis(100)).await;
            }
        }
    });
    let (mut written, mut last) = (0_usize, 0);
    for writer in writers {
        let (writes, revision) = writer.await.unwrap().unwrap();
        assert!(writes > 0);
        written += writes;
        last = last.max(revision);
    }
    newcomers.await.unwrap();
    for watch in &mut watches {
        let mut seen = 0;
        loop {
            let (revision, keys) = next(watch).await;
            seen += keys.len();
            if revision == last {
                break;
            }
        }
        assert_eq!(seen, written);
    }
    let logins = logins(&cluster).await - before;
    assert!(
        (9.0..=12.0).contains(&logins),
        "{logins} logins for ten expiries"
    );
}

#[tokio::test]
async fn a_watch_that_was_cut_off_after_its_token_ended_goes_on() {
    let ttl = Duration::from_secs(1);
    let cluster = Cluster::builder().tokens(Tokens::Jwt(ttl)).start().await;
    cluster.enable_auth("root", "secret").await;
    let etcd = client(&cluster, "root", "secret").await;
    let mut watch = etcd.watch("k").await.unwrap();
    for value in ["first", "second"] {
        // No call of the client notices that the token has ended: the watch has to.
        sleep(ttl * 2).await;
        cluster.member(0).client_link().reset_now();
        let put = json!({"key": encode("k"), "value": encode(value)});
        cluster.api(0, "/v3/kv/put", put).await.unwrap();
        assert_eq!(next(&mut watch).await.1, ["k"]);
    }
}

#[tokio::test]
async fn a_lazy_client_logs_in_for_its_first_watch() {
    let cluster = Cluster::start(1).await;
    cluster.enable_auth("root", "secret").await;
    let etcd = Client::builder(cluster.endpoints())
        .auth("root", "secret")
        .connect_lazy()
        .await
        .unwrap();
    let mut watch = etcd.watch("k").await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert_eq!(next(&mut watch).await.1, ["k"]);
}

#[tokio::test]
async fn without_credentials_or_with_wrong_ones_a_watch_says_so() {
    let cluster = Cluster::start(1).await;
    cluster.enable_auth("root", "secret").await;
    let stranger = Client::connect(cluster.endpoints()).await.unwrap();
    let refused = stranger.watch("k").await.unwrap_err();
    assert!(refused.to_string().contains("user"), "{refused}");
    let wrong = Client::builder(cluster.endpoints())
        .auth("root", "wrong")
        .connect_lazy()
        .await
        .unwrap();
    let refused = wrong.watch("k").await.unwrap_err();
    assert!(refused.to_string().contains("password"), "{refused}");
}

#[tokio::test]
async fn who_loses_a_permission_loses_that_watch_and_no_other() {
    let cluster = Cluster::start(1).await;
    cluster.enable_auth("root", "secret").await;
    let root = client(&cluster, "root", "secret").await;
    root.users().add("ann", "word").await.unwrap();
    root.roles().add("r").await.unwrap();
    for prefix in ["a/", "b/"] {
        let permission = Permission::read(prefix).prefix();
        root.roles().grant("r", permission).await.unwrap();
    }
    root.users().grant_role("ann", "r").await.unwrap();
    let ann = client(&cluster, "ann", "word").await;
    let mut lost = ann.watch("a/").prefix().await.unwrap();
    let mut kept = ann.watch("b/").prefix().await.unwrap();
    let permission = Permission::read("a/").prefix();
    root.roles().revoke("r", permission).await.unwrap();
    // etcd asks for the right when a watch is created, so it shows when both come anew.
    cluster.member(0).client_link().reset_now();
    let end = last_item(&mut lost).await;
    assert!(matches!(end, WatchEnd::PermissionDenied(_)), "{end}");
    root.put("b/k", "v").await.unwrap();
    assert_eq!(next(&mut kept).await.1, ["b/k"]);
}
