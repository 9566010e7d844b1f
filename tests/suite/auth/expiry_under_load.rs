//! Ten tokens that end under 64 writers and 8 watches: nobody notices, and each costs one login.

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

use crate::{
    support::{
        auth_cluster::{all_succeed, logins, puts, secured, user, with_tokens},
        wait::until_async,
    },
    watch::operations::next,
};

async fn eight_watches(etcd: &Client) -> Vec<Watch> {
    let mut watches = Vec::new();
    for _ in 0..8 {
        watches.push(etcd.watch("k/").prefix().buffer(100_000).await.unwrap());
    }
    watches
}

/// Each has seen every write, and none twice.
async fn assert_all_seen(watches: Vec<Watch>, written: usize) {
    for mut watch in watches {
        let mut seen = 0;
        while seen < written {
            seen += next(&mut watch).await.1.len();
        }
        assert_eq!(seen, written);
    }
}

#[tokio::test]
async fn writers_and_watches_see_nothing_of_ten_expiries() {
    let ttl = Duration::from_secs(3);
    // etcd cuts the end to a whole second, and a token is replaced when two thirds of the rest are over, at the earliest.
    let shortest = Duration::from_millis(1300);
    // One member: of several, one that a busy machine holds up for long is left, and writes on it are in doubt.
    let cluster = with_tokens(Tokens::Jwt(ttl)).await;
    let before = logins(&cluster).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let times = asked.clone();
    let etcd = Client::builder(cluster.endpoints())
        .auth_provider(move || {
            times.lock().unwrap().push(Instant::now());
            async { Ok::<_, std::io::Error>(Credentials::password("root", "secret")) }
        })
        .connect()
        .await
        .unwrap();
    let watches = eight_watches(&etcd).await;
    let enough = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..64)
        .map(|writer| {
            let (etcd, enough) = (etcd.clone(), enough.clone());
            tokio::spawn(async move {
                let mut writes = 0_usize;
                while !enough.load(Ordering::SeqCst) {
                    etcd.put(format!("k/{writer}"), "v").await.unwrap();
                    writes += 1;
                    sleep(Duration::from_millis(20)).await;
                }
                writes
            })
        })
        .collect();
    let patience = Instant::now() + Duration::from_secs(60);
    while asked.lock().unwrap().len() <= 10 {
        assert!(Instant::now() < patience, "tokens are not replaced");
        // New watches come onto streams whose token has ended meanwhile.
        let mut newcomer = etcd.watch("k/").prefix().await.unwrap();
        next(&mut newcomer).await;
    }
    enough.store(true, Ordering::SeqCst);
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    assert_all_seen(watches, written).await;
    // One login for each token that came to its end, and the one at the beginning.
    let logins = logins(&cluster).await - before;
    let asked = asked.lock().unwrap().clone();
    assert!((11..=asked.len() as u64).contains(&logins), "{logins}");
    for pair in asked.windows(2) {
        assert!(pair[1] - pair[0] > shortest, "two logins for one token");
    }
}

/// How many tokens of this user a member has forgotten.
fn forgotten(cluster: &Cluster, user: &str) -> usize {
    let user = format!(r#""user-name":"{user}""#);
    cluster
        .member(0)
        .count_log_lines(&["deleted a simple token", &user])
}

#[tokio::test]
async fn a_simple_token_that_was_forgotten_ten_times_costs_ten_logins_and_no_call() {
    // A member says what it forgets only when it is asked to say much.
    let cluster = Cluster::builder()
        .tokens(Tokens::Simple(Duration::from_secs(1)))
        .arg("--log-level=debug");
    let cluster = secured(cluster).await;
    cluster.add_user("ann", "word", Some("k/")).await;
    let before = logins(&cluster).await;
    let etcd = user(&cluster, "ann", "word").await;
    let watches = eight_watches(&etcd).await;
    let mut written = 0;
    for round in 1..=10 {
        let ended = forgotten(&cluster, "ann");
        // Probes, which a watch has, use the token, too, every three seconds: it ends between two of them.
        until_async("the token is forgotten", async || {
            // The log is long, and read as a whole.
            sleep(Duration::from_millis(50)).await;
            forgotten(&cluster, "ann") > ended
        })
        .await;
        all_succeed(puts(&etcd, 64)).await;
        // This one comes onto streams whose token has ended.
        let mut newcomer = etcd.watch("k/").prefix().await.unwrap();
        etcd.put("k/last", "v").await.unwrap();
        next(&mut newcomer).await;
        written += 65;
        assert!(forgotten(&cluster, "ann") >= round);
    }
    // The first login, and one for each token that ended; the last one may have ended since.
    let (logins, ended) = (logins(&cluster).await - before, forgotten(&cluster, "ann"));
    let used = 1 + ended as u64;
    assert!(
        (used - 1..=used).contains(&logins),
        "{logins}, {ended} ended"
    );
    assert_all_seen(watches, written).await;
}
