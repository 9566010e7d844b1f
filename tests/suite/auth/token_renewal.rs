//! Tokens that end: replaced before that where their end is known, and without anybody noticing where it is not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use actix_etcd::{Client, Credentials, ErrorKind, WatchItem, lease::LeaseEvent, testing};
use testbed::{Cluster, Reply, ScriptedServer, Tokens, encode};
use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt;

use crate::support::{
    auth_cluster::{
        AUTHENTICATE, PUT, all_succeed, ann, handled, logins, no_user, puts, root, secured, token,
        with_tokens, written,
    },
    wait::{hold, until, until_async},
    watch_items::{next_change, next_item},
};

/// Requests that were refused for their token.
async fn refusals(cluster: &Cluster) -> u64 {
    handled(cluster, r#"grpc_code="Unauthenticated""#).await
}

/// A token is used for two thirds of its life at least, of which etcd cuts off up to a second, and is replaced once.
async fn assert_frugal(cluster: &Cluster, before: u64, ttl: Duration, started: Instant) {
    let shortest = (ttl.saturating_sub(Duration::from_secs(1)) * 2 / 3).as_millis();
    let most = started.elapsed().as_millis() / shortest + 1;
    let logins = u128::from(logins(cluster).await - before);
    assert!(logins <= most, "{logins} logins, {most} at the most");
}

/// A token that ends then, as a JWT tells it. Nobody here looks at the signature.
fn jwt(nth: usize, life: Duration) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let end = (now.unwrap() + life).as_secs_f64();
    let part = |text: String| encode(text).replace(['+', '/', '='], "");
    format!(
        "{}.{}.{nth}",
        part("{}".to_owned()),
        part(format!(r#"{{"username":"ann","exp":{end}}}"#))
    )
}

#[tokio::test]
async fn a_token_that_tells_its_end_is_never_refused() {
    // A quarter of it is what a login may take, on a busy machine with three members.
    let ttl = Duration::from_secs(12);
    let cluster = secured(Cluster::builder().members(3).tokens(Tokens::Jwt(ttl))).await;
    let etcd = root(&cluster).await;
    let (tokens, refused) = (logins(&cluster).await, refusals(&cluster).await);
    let started = Instant::now();
    let lease = etcd.lease(Duration::from_secs(3)).keep_alive().await;
    let lease = lease.unwrap();
    let mut renewed = lease.events();
    let mut watch = etcd.watch("k/").prefix().notices().await.unwrap();
    let enough = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..4)
        .map(|reader| {
            let (etcd, enough) = (etcd.clone(), enough.clone());
            tokio::spawn(async move {
                while !enough.load(Ordering::SeqCst) {
                    etcd.get(format!("k/{reader}")).await.unwrap();
                    sleep(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    // Three tokens: each time, streams are opened anew, and watches come onto the streams there are.
    for token in 1..=3 {
        until_async("a token is replaced", async || {
            logins(&cluster).await - tokens >= token
        })
        .await;
        for member in cluster.members() {
            member.client_link().reset_now();
        }
        let mut newcomer = etcd.watch("k/").prefix().await.unwrap();
        until_async("a write arrives", async || {
            etcd.put("k/0", "v").await.is_ok()
        })
        .await;
        next_change(&mut newcomer).await;
        while !matches!(next_item(&mut watch).await, WatchItem::Events(_)) {}
        while !matches!(renewed.next().await, Some(LeaseEvent::Renewed { .. })) {}
    }
    enough.store(true, Ordering::SeqCst);
    for reader in load {
        reader.await.unwrap();
    }
    assert_eq!(refusals(&cluster).await - refused, 0);
    assert_frugal(&cluster, tokens, ttl, started).await;
}

#[tokio::test]
async fn a_lease_is_kept_over_the_ends_of_tokens() {
    let cluster = with_tokens(Tokens::Jwt(Duration::from_secs(5))).await;
    let etcd = root(&cluster).await;
    let (tokens, refused) = (logins(&cluster).await, refusals(&cluster).await);
    let lease = etcd.lease(Duration::from_secs(3)).keep_alive().await;
    let lease = lease.unwrap();
    let mut events = lease.events();
    while logins(&cluster).await - tokens < 3 {
        let event = events.next().await;
        assert!(
            matches!(event, Some(LeaseEvent::Renewed { .. })),
            "{event:?}"
        );
    }
    assert_eq!(refusals(&cluster).await - refused, 0);
}

#[tokio::test]
async fn a_change_of_users_costs_one_login_and_no_call() {
    let cluster = with_tokens(Tokens::Jwt(Duration::from_secs(600))).await;
    let etcd = root(&cluster).await;
    let before = logins(&cluster).await;
    for round in 0..5_u8 {
        // The testbed logs in anew, too: it is refused as everybody is.
        let name = format!("user-{round}");
        cluster.add_user(&name, "word", None).await;
        all_succeed(puts(&etcd, 64)).await;
    }
    let logins = logins(&cluster).await - before;
    assert!((5..=11).contains(&logins), "{logins} logins");
}

#[tokio::test]
async fn a_simple_token_is_replaced_in_time_where_its_lifetime_is_told() {
    let ttl = Duration::from_secs(4);
    let cluster = with_tokens(Tokens::Simple(ttl)).await;
    let etcd = Client::builder(cluster.endpoints())
        .auth("root", "secret")
        .token_lifetime(ttl)
        .connect()
        .await
        .unwrap();
    let (tokens, refused) = (logins(&cluster).await, refusals(&cluster).await);
    for token in 1..=2 {
        // Used until then: one that nobody takes along is let go, and the server sees the next login before the client.
        until_async("it is replaced", async || {
            etcd.get("k").await.unwrap();
            logins(&cluster).await - tokens >= token
        })
        .await;
    }
    etcd.get("k").await.unwrap();
    assert_eq!(refusals(&cluster).await - refused, 0);
}

/// Which token the last put took along, by the number of its login.
fn last_token(server: &ScriptedServer) -> usize {
    let put = server.calls(PUT).pop().unwrap();
    let token = put.metadata["token"].to_str().unwrap();
    token.rsplit('.').next().unwrap().parse().unwrap()
}

/// A scripted member whose tokens last that long, and that takes only the last one.
async fn short_lived(life: Duration) -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, move |call| token(&jwt(call.nth, life)));
    server.on(PUT, |call| match call.metadata.get("token") {
        None => no_user(),
        Some(_) => written(),
    });
    server
}

#[tokio::test]
async fn who_does_nothing_does_not_log_in_again_either() {
    let life = Duration::from_secs(2);
    let server = short_lived(life).await;
    let etcd = ann(&server).await;
    etcd.put("k", "v").await.unwrap();
    until("the token that was used is replaced", || {
        server.count(AUTHENTICATE) == 2
    })
    .await;
    hold(life * 3).await;
    assert_eq!(server.count(AUTHENTICATE), 2, "nobody needs a third one");
    etcd.put("k", "v").await.unwrap();
    assert_eq!(server.count(AUTHENTICATE), 3);
    assert_eq!(last_token(&server), 2, "the one that was let go was used");
}

#[tokio::test]
async fn calls_use_the_old_token_until_the_new_one_is_there() {
    let life = Duration::from_secs(4);
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, move |call| {
        let delay = if call.nth == 0 { 0 } else { 1500 };
        token(&jwt(call.nth, life)).after(Duration::from_millis(delay))
    });
    server.on(PUT, |_| written());
    let etcd = ann(&server).await;
    until_async("the next login is under way", async || {
        etcd.put("k", "v").await.unwrap();
        server.count(AUTHENTICATE) == 2
    })
    .await;
    etcd.put("k", "meanwhile").await.unwrap();
    assert_eq!(last_token(&server), 0);
    until_async("the new token is used", async || {
        etcd.put("k", "v").await.unwrap();
        last_token(&server) == 1
    })
    .await;
}

#[tokio::test]
async fn tokens_that_end_as_soon_as_they_arrive_are_used_until_they_are_refused() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |call| {
        let life = Duration::from_millis(400);
        token(&jwt(call.nth, life)).after(Duration::from_millis(300))
    });
    server.on(PUT, |_| written());
    let etcd = ann(&server).await;
    all_succeed(puts(&etcd, 16)).await;
    hold(Duration::from_secs(1)).await;
    all_succeed(puts(&etcd, 16)).await;
    assert_eq!(server.count(AUTHENTICATE), 1, "nobody refused it");
}

#[tokio::test]
async fn a_login_ahead_of_time_that_fails_is_tried_again_and_disturbs_nobody() {
    let life = Duration::from_secs(3);
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, move |call| match call.nth {
        1 => Reply::status(
            3,
            "etcdserver: authentication failed, invalid user ID or password",
        ),
        nth => token(&jwt(nth, life)),
    });
    server.on(PUT, |_| written());
    let etcd = ann(&server).await;
    until_async("the third login is the good one", async || {
        etcd.put("k", "v").await.unwrap();
        last_token(&server) == 2
    })
    .await;
}

#[tokio::test]
async fn a_provider_of_tokens_is_asked_before_the_last_one_ends() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| written());
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let first = jwt(0, Duration::from_secs(3));
    let etcd = Client::builder([server.endpoint()])
        .auth_provider(move || {
            let token = match counter.fetch_add(1, Ordering::SeqCst) {
                // It has no other one yet.
                0 | 1 => first.clone(),
                _ => jwt(1, Duration::from_secs(600)),
            };
            async move { Ok::<_, std::io::Error>(Credentials::token(token)) }
        })
        .connect()
        .await
        .unwrap();
    until_async("the next token is used", async || {
        etcd.put("k", "v").await.unwrap();
        last_token(&server) == 1
    })
    .await;
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_provider_may_give_a_token_again_that_was_let_go_and_never_refused() {
    let life = Duration::from_secs(2);
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| written());
    let tokens = [jwt(0, life), jwt(1, life * 2)];
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let etcd = Client::builder([server.endpoint()])
        .auth_provider(move || {
            let nth = counter.fetch_add(1, Ordering::SeqCst);
            let token = tokens[nth.min(1)].clone();
            async move { Ok::<_, std::io::Error>(Credentials::token(token)) }
        })
        .connect()
        .await
        .unwrap();
    until("the second one is there", || {
        asked.load(Ordering::SeqCst) == 2
    })
    .await;
    // Nobody uses that one: it is let go some time before its end.
    hold(life * 2).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    etcd.put("k", "v").await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    assert_eq!(last_token(&server), 1);
}

#[tokio::test]
async fn a_crash_of_the_auth_actor_does_not_make_it_forget_the_end_of_a_token() {
    let server = short_lived(Duration::from_secs(3)).await;
    let etcd = ann(&server).await;
    etcd.put("k", "v").await.unwrap();
    testing::crash_auth(&etcd);
    until("the token is replaced", || server.count(AUTHENTICATE) == 2).await;
}

#[tokio::test]
async fn a_token_made_elsewhere_is_used_and_its_end_is_told() {
    let cluster = with_tokens(Tokens::Jwt(Duration::from_secs(5))).await;
    let login = serde_json::json!({"name": "root", "password": "secret"});
    let login = cluster.api(0, "/v3/auth/authenticate", login).await;
    let login = login.unwrap();
    let jwt = login["token"].as_str().unwrap();
    let builder = Client::builder(cluster.endpoints()).token(jwt);
    assert!(!format!("{builder:?}").contains(jwt));
    let etcd = builder.connect().await.unwrap();
    etcd.put("k", "v").await.unwrap();
    until_async("it ends", async || etcd.get("k").await.is_err()).await;
    let ended = etcd.get("k").await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::InvalidAuthToken);
    assert!(!format!("{ended} {ended:?}").contains(jwt));
}
