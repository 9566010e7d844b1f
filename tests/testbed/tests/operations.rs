//! Administration, history and chaos.

use std::time::Duration;

use serde_json::json;
use testbed::{Chaos, ChaosKind, Cluster, encode, number};

#[tokio::test]
async fn leadership_moves_to_chosen_member() {
    let cluster = Cluster::start(3).await;
    let next = (cluster.leader().await + 1) % 3;
    cluster.move_leader(next).await;
    assert_eq!(cluster.leader().await, next);
}

#[tokio::test]
async fn members_are_added_promoted_and_removed() {
    let cluster = Cluster::start(1).await;
    let learner = cluster.add_learner().await;
    let refused = cluster
        .api(learner, "/v3/kv/range", json!({"key": encode("k")}))
        .await
        .unwrap_err();
    assert!(refused.contains("learner"), "{refused}");
    cluster.promote(learner).await;
    let member = cluster.add_member().await;
    assert_eq!((learner, member, cluster.endpoints().len()), (1, 2, 3));
    cluster.remove_member(0).await;
    let list = cluster.api_any("/v3/cluster/member/list", json!({})).await;
    assert_eq!(list["members"].as_array().unwrap().len(), 2);
    assert_eq!(cluster.endpoints().len(), 2);
    cluster.wait_healthy().await;
}

#[tokio::test]
async fn authentication_rejects_wrong_password_but_not_testbed() {
    let cluster = Cluster::start(1).await;
    cluster.enable_auth("root", "secret").await;
    cluster.add_user("reader", "word", Some("a/")).await;
    cluster
        .api(
            0,
            "/v3/kv/put",
            json!({"key": encode("k"), "value": encode("v")}),
        )
        .await
        .unwrap();
    let login = json!({"name": "reader", "password": "wrong"});
    assert!(
        cluster
            .api(0, "/v3/auth/authenticate", login)
            .await
            .is_err()
    );
    assert_eq!(cluster.history("k").await.len(), 1);
}

#[tokio::test]
async fn history_has_every_change_since_compaction() {
    for version in ["3.4", "3.7"] {
        let cluster = Cluster::builder().version(version).start().await;
        assert!(cluster.history("").await.is_empty());
        for value in 0..2_500 {
            let key = if value % 2 == 0 { "a/k" } else { "b/k" };
            let put = json!({"key": encode(key), "value": encode(value.to_string())});
            cluster.api(0, "/v3/kv/put", put).await.unwrap();
        }
        cluster
            .api(0, "/v3/kv/deleterange", json!({"key": encode("a/k")}))
            .await
            .unwrap();
        let changes = cluster.history("a/").await;
        assert_eq!(changes.len(), 1_251, "etcd {version}");
        assert!(
            changes
                .windows(2)
                .all(|pair| pair[0].revision < pair[1].revision)
        );
        assert_eq!(changes[10].value.as_deref(), Some(&b"20"[..]));
        assert_eq!((changes[10].version, changes[10].create_revision), (11, 2));
        assert_eq!(
            (changes[1_250].revision, &changes[1_250].value),
            (2_502, &None)
        );
        cluster
            .api(0, "/v3/kv/compaction", json!({"revision": "2000"}))
            .await
            .unwrap();
        assert!(
            cluster
                .history("")
                .await
                .first()
                .is_some_and(|first| first.revision >= 2_000)
        );
    }
}

#[tokio::test]
async fn chaos_ends_healthy_and_repeats_from_seed() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let cluster = Cluster::start(3).await;
        let (shortest, longest) = (Duration::from_millis(100), Duration::from_millis(300));
        let chaos =
            Chaos::new("itself", 7, Duration::from_secs(4)).fault_duration(shortest, longest);
        let injected = chaos.run(&cluster, &ChaosKind::ALL).await;
        assert!(cluster.members().iter().all(testbed::Member::is_running));
        let put = json!({"key": encode("k"), "value": encode("v")});
        let put = cluster.api(0, "/v3/kv/put", put).await.unwrap();
        assert!(number::<i64>(&put["header"]["revision"]) > 1);
        runs.push(injected);
    }
    let common = runs[0].len().min(runs[1].len());
    assert!(common > 2, "{runs:?}");
    assert_eq!(runs[0][..common], runs[1][..common]);
}
