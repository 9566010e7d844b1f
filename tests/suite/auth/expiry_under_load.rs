//! Token expiry under load: no write fails, no watch misses an event, and each expiry causes one login.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix_etcd::{Client, Credentials, Watch};
use testbed::{Cluster, Tokens};
use tokio::time::{Instant, sleep};

use crate::support::{
    auth_cluster::{
        assert_all_succeed, connect_with_rare_probes, login_count, spawn_puts, start_with_auth,
        start_with_tokens,
    },
    wait::until_async,
    watch_items::next_change,
};

async fn open_eight_watches(etcd: &Client) -> Vec<Watch> {
    let mut watches = Vec::new();
    for _ in 0..8 {
        watches.push(etcd.watch("k/").prefix().buffer(100_000).await.unwrap());
    }
    watches
}

/// Asserts that each watch receives every write exactly once.
async fn assert_all_received(watches: Vec<Watch>, written: usize) {
    for mut watch in watches {
        let mut received = 0;
        while received < written {
            received += next_change(&mut watch).await.1.len();
        }
        assert_eq!(received, written);
    }
}

#[tokio::test]
async fn token_expiry_costs_no_write_or_event() {
    let ttl = Duration::from_secs(3);
    // etcd truncates the expiry to a whole second. The client replaces a token after two thirds of the remaining
    // lifetime at the earliest.
    let shortest_use = Duration::from_millis(1300);
    // One member only: on a busy machine, a slow member of several is abandoned, and its writes end as unknown.
    let cluster = start_with_tokens(Tokens::Jwt(ttl)).await;
    let before = login_count(&cluster).await;
    let provider_calls = Arc::new(Mutex::new(Vec::new()));
    let recorded_calls = provider_calls.clone();
    let etcd = Client::builder(cluster.endpoints())
        .credentials_provider(move || {
            recorded_calls.lock().unwrap().push(Instant::now());
            async { Ok::<_, std::io::Error>(Credentials::password("root", "secret")) }
        })
        .connect()
        .await
        .unwrap();
    let watches = open_eight_watches(&etcd).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..64)
        .map(|writer| {
            let (etcd, stop) = (etcd.clone(), stop.clone());
            tokio::spawn(async move {
                let mut writes = 0_usize;
                while !stop.load(Ordering::SeqCst) {
                    etcd.put(format!("k/{writer}"), "v").await.unwrap();
                    writes += 1;
                    sleep(Duration::from_millis(20)).await;
                }
                writes
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    while provider_calls.lock().unwrap().len() <= 10 {
        assert!(Instant::now() < deadline, "tokens are not replaced");
        // Adds a watch to a stream whose token may have expired.
        let mut new_watch = etcd.watch("k/").prefix().await.unwrap();
        next_change(&mut new_watch).await;
    }
    stop.store(true, Ordering::SeqCst);
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    assert_all_received(watches, written).await;
    // The first login, and one per expired token.
    let logins = login_count(&cluster).await - before;
    let provider_calls = provider_calls.lock().unwrap().clone();
    assert!(
        (11..=provider_calls.len() as u64).contains(&logins),
        "{logins}"
    );
    for pair in provider_calls.windows(2) {
        assert!(pair[1] - pair[0] > shortest_use, "two logins for one token");
    }
}

/// Returns the number of tokens of this user that the member has deleted.
fn deleted_tokens(cluster: &Cluster, user: &str) -> usize {
    let user = format!(r#""user-name":"{user}""#);
    cluster
        .member(0)
        .count_log_lines(&["deleted a simple token", &user])
}

#[tokio::test]
async fn each_expired_simple_token_costs_one_login() {
    // The deletion of tokens is logged at debug level only.
    let cluster = Cluster::builder()
        .tokens(Tokens::Simple(Duration::from_secs(1)))
        .arg("--log-level=debug");
    let cluster = start_with_auth(cluster).await;
    cluster.add_user("ann", "word", Some("k/")).await;
    let before = login_count(&cluster).await;
    let etcd = connect_with_rare_probes(&cluster, "ann", "word").await;
    let watches = open_eight_watches(&etcd).await;
    let mut written = 0;
    for round in 1..=10 {
        let deleted_before = deleted_tokens(&cluster, "ann");
        until_async("the token is deleted", async || {
            // Each check reads the whole log, which is long.
            sleep(Duration::from_millis(50)).await;
            deleted_tokens(&cluster, "ann") > deleted_before
        })
        .await;
        assert_all_succeed(spawn_puts(&etcd, 64)).await;
        // Adds a watch to a stream whose token has expired.
        let mut new_watch = etcd.watch("k/").prefix().await.unwrap();
        etcd.put("k/last", "v").await.unwrap();
        next_change(&mut new_watch).await;
        written += 65;
        assert!(deleted_tokens(&cluster, "ann") >= round);
    }
    // The first login, and one per expired token. The last token may have expired after the last login.
    let (logins, deleted) = (
        login_count(&cluster).await - before,
        deleted_tokens(&cluster, "ann"),
    );
    let tokens = 1 + deleted as u64;
    assert!(
        (tokens - 1..=tokens).contains(&logins),
        "{logins} logins, {deleted} expired tokens"
    );
    assert_all_received(watches, written).await;
}
