//! Renewal of tokens: before expiry if the client knows the expiry, otherwise after a refusal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use actix_etcd::{Client, Credentials, ErrorKind, WatchEvent, lease::LeaseEvent, test_faults};
use testbed::{Cluster, Reply, ScriptedServer, Tokens, encode};
use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt;

use crate::support::{
    auth_cluster::{
        AUTHENTICATE, assert_all_succeed, connect_as_ann, connect_as_root, handled_count,
        login_count, login_reply, missing_token_reply, spawn_puts, start_with_auth,
        start_with_tokens,
    },
    scripted_put::{PUT, put_reply},
    wait::{hold, until, until_async},
    watch_items::{next_change, next_item},
};

/// Returns the number of requests that were refused because of their token.
async fn refused_count(cluster: &Cluster) -> u64 {
    handled_count(cluster, r#"grpc_code="Unauthenticated""#).await
}

/// Asserts that every token was used for at least two thirds of its lifetime, which etcd shortens by up to a second.
async fn assert_few_logins(cluster: &Cluster, before: u64, ttl: Duration, started: Instant) {
    let shortest_use = (ttl.saturating_sub(Duration::from_secs(1)) * 2 / 3).as_millis();
    let max_logins = started.elapsed().as_millis() / shortest_use + 1;
    let logins = u128::from(login_count(cluster).await - before);
    assert!(
        logins <= max_logins,
        "{logins} logins, at most {max_logins} expected"
    );
}

/// Returns a JWT with this lifetime. Its signature, which is not checked, is the number of the login.
fn jwt(login: usize, lifetime: Duration) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let expiry = (now.unwrap() + lifetime).as_secs_f64();
    let part = |text: String| encode(text).replace(['+', '/', '='], "");
    format!(
        "{}.{}.{login}",
        part("{}".to_owned()),
        part(format!(r#"{{"username":"ann","exp":{expiry}}}"#))
    )
}

#[tokio::test]
async fn jwt_is_renewed_before_expiry() {
    // Long enough that a login may take a quarter of it, on a busy machine with three members.
    let ttl = Duration::from_secs(12);
    let cluster = start_with_auth(Cluster::builder().members(3).tokens(Tokens::Jwt(ttl))).await;
    let etcd = connect_as_root(&cluster).await;
    let (logins_before, refused_before) =
        (login_count(&cluster).await, refused_count(&cluster).await);
    let started = Instant::now();
    let lease = etcd.lease(Duration::from_secs(3)).keep_alive().await;
    let lease = lease.unwrap();
    let mut lease_events = lease.events();
    let mut watch = etcd.watch("k/").prefix().status_events().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..4)
        .map(|reader| {
            let (etcd, stop) = (etcd.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    etcd.get(format!("k/{reader}")).await.unwrap();
                    sleep(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    // After each of three renewals, streams are reopened and a watch is added to an existing stream.
    for renewals in 1..=3 {
        until_async("the token is replaced", async || {
            login_count(&cluster).await - logins_before >= renewals
        })
        .await;
        for member in cluster.members() {
            member.client_link().reset_now();
        }
        let mut new_watch = etcd.watch("k/").prefix().await.unwrap();
        until_async("a write arrives", async || {
            etcd.put("k/0", "v").await.is_ok()
        })
        .await;
        next_change(&mut new_watch).await;
        while !matches!(next_item(&mut watch).await, WatchEvent::Events(_)) {}
        while !matches!(lease_events.next().await, Some(LeaseEvent::Renewed { .. })) {}
    }
    stop.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(refused_count(&cluster).await - refused_before, 0);
    assert_few_logins(&cluster, logins_before, ttl, started).await;
}

#[tokio::test]
async fn lease_outlives_its_tokens() {
    let cluster = start_with_tokens(Tokens::Jwt(Duration::from_secs(5))).await;
    let etcd = connect_as_root(&cluster).await;
    let (logins_before, refused_before) =
        (login_count(&cluster).await, refused_count(&cluster).await);
    let lease = etcd.lease(Duration::from_secs(3)).keep_alive().await;
    let lease = lease.unwrap();
    let mut events = lease.events();
    while login_count(&cluster).await - logins_before < 3 {
        let event = events.next().await;
        assert!(
            matches!(event, Some(LeaseEvent::Renewed { .. })),
            "{event:?}"
        );
    }
    assert_eq!(refused_count(&cluster).await - refused_before, 0);
}

#[tokio::test]
async fn user_change_costs_one_login() {
    let cluster = start_with_tokens(Tokens::Jwt(Duration::from_secs(600))).await;
    let etcd = connect_as_root(&cluster).await;
    let before = login_count(&cluster).await;
    for round in 0..5_u8 {
        // The testbed logs in again as well, because its token is refused, too.
        let name = format!("user-{round}");
        cluster.add_user(&name, "word", None).await;
        assert_all_succeed(spawn_puts(&etcd, 64)).await;
    }
    let logins = login_count(&cluster).await - before;
    assert!((5..=11).contains(&logins), "{logins} logins");
}

#[tokio::test]
async fn simple_token_with_known_lifetime_is_renewed() {
    let ttl = Duration::from_secs(4);
    let cluster = start_with_tokens(Tokens::Simple(ttl)).await;
    let etcd = Client::builder(cluster.endpoints())
        .credentials("root", "secret")
        .token_lifetime(ttl)
        .connect()
        .await
        .unwrap();
    let (logins_before, refused_before) =
        (login_count(&cluster).await, refused_count(&cluster).await);
    for renewals in 1..=2 {
        // The token is used meanwhile: an unused token is discarded instead of renewed. The server counts the login
        // before the client has the new token.
        until_async("the token is replaced", async || {
            etcd.get("k").await.unwrap();
            login_count(&cluster).await - logins_before >= renewals
        })
        .await;
    }
    etcd.get("k").await.unwrap();
    assert_eq!(refused_count(&cluster).await - refused_before, 0);
}

/// Returns the login number of the token in the last put.
fn last_token_login(server: &ScriptedServer) -> usize {
    let put = server.calls(PUT).pop().unwrap();
    let token = put.metadata["token"].to_str().unwrap();
    token.rsplit('.').next().unwrap().parse().unwrap()
}

/// Starts a server that issues tokens with this lifetime and requires a token for puts.
async fn start_with_lifetime(lifetime: Duration) -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, move |call| {
        login_reply(&jwt(call.nth, lifetime))
    });
    server.on(PUT, |call| match call.metadata.get("token") {
        None => missing_token_reply(),
        Some(_) => put_reply(),
    });
    server
}

#[tokio::test]
async fn idle_client_does_not_renew_token() {
    let lifetime = Duration::from_secs(2);
    let server = start_with_lifetime(lifetime).await;
    let etcd = connect_as_ann(&server).await;
    etcd.put("k", "v").await.unwrap();
    until("the used token is replaced", || {
        server.count(AUTHENTICATE) == 2
    })
    .await;
    hold(lifetime * 3).await;
    assert_eq!(
        server.count(AUTHENTICATE),
        2,
        "an unused token must not be renewed"
    );
    etcd.put("k", "v").await.unwrap();
    assert_eq!(server.count(AUTHENTICATE), 3);
    assert_eq!(last_token_login(&server), 2, "a discarded token was used");
}

#[tokio::test]
async fn calls_use_old_token_during_renewal() {
    let lifetime = Duration::from_secs(4);
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, move |call| {
        let delay = if call.nth == 0 { 0 } else { 1500 };
        login_reply(&jwt(call.nth, lifetime)).after(Duration::from_millis(delay))
    });
    server.on(PUT, |_| put_reply());
    let etcd = connect_as_ann(&server).await;
    until_async("the next login is in flight", async || {
        etcd.put("k", "v").await.unwrap();
        server.count(AUTHENTICATE) == 2
    })
    .await;
    etcd.put("k", "meanwhile").await.unwrap();
    assert_eq!(last_token_login(&server), 0);
    until_async("the new token is used", async || {
        etcd.put("k", "v").await.unwrap();
        last_token_login(&server) == 1
    })
    .await;
}

#[tokio::test]
async fn token_expired_on_arrival_is_used_until_refused() {
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, |call| {
        let lifetime = Duration::from_millis(400);
        login_reply(&jwt(call.nth, lifetime)).after(Duration::from_millis(300))
    });
    server.on(PUT, |_| put_reply());
    let etcd = connect_as_ann(&server).await;
    assert_all_succeed(spawn_puts(&etcd, 16)).await;
    hold(Duration::from_secs(1)).await;
    assert_all_succeed(spawn_puts(&etcd, 16)).await;
    assert_eq!(server.count(AUTHENTICATE), 1, "the token was not refused");
}

#[tokio::test]
async fn failed_renewal_is_retried() {
    let lifetime = Duration::from_secs(3);
    let server = ScriptedServer::start().await;
    server.on(AUTHENTICATE, move |call| match call.nth {
        1 => Reply::status(
            3,
            "etcdserver: authentication failed, invalid user ID or password",
        ),
        nth => login_reply(&jwt(nth, lifetime)),
    });
    server.on(PUT, |_| put_reply());
    let etcd = connect_as_ann(&server).await;
    until_async("the token of the third login is used", async || {
        etcd.put("k", "v").await.unwrap();
        last_token_login(&server) == 2
    })
    .await;
}

#[tokio::test]
async fn token_provider_is_called_before_expiry() {
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| put_reply());
    let provider_calls = Arc::new(AtomicUsize::new(0));
    let counter = provider_calls.clone();
    let first = jwt(0, Duration::from_secs(3));
    let etcd = Client::builder([server.endpoint()])
        .credentials_provider(move || {
            let token = match counter.fetch_add(1, Ordering::SeqCst) {
                // The provider has no newer token yet.
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
        last_token_login(&server) == 1
    })
    .await;
    assert_eq!(provider_calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn provider_may_return_discarded_token() {
    let lifetime = Duration::from_secs(2);
    let server = ScriptedServer::start().await;
    server.on(PUT, |_| put_reply());
    let tokens = [jwt(0, lifetime), jwt(1, lifetime * 2)];
    let provider_calls = Arc::new(AtomicUsize::new(0));
    let counter = provider_calls.clone();
    let etcd = Client::builder([server.endpoint()])
        .credentials_provider(move || {
            let nth = counter.fetch_add(1, Ordering::SeqCst);
            let token = tokens[nth.min(1)].clone();
            async move { Ok::<_, std::io::Error>(Credentials::token(token)) }
        })
        .connect()
        .await
        .unwrap();
    until("the second token is requested", || {
        provider_calls.load(Ordering::SeqCst) == 2
    })
    .await;
    // The second token is unused, so the client discards it before it expires.
    hold(lifetime * 2).await;
    assert_eq!(provider_calls.load(Ordering::SeqCst), 2);
    etcd.put("k", "v").await.unwrap();
    assert_eq!(provider_calls.load(Ordering::SeqCst), 3);
    assert_eq!(last_token_login(&server), 1);
}

#[tokio::test]
async fn auth_actor_crash_keeps_token_expiry() {
    let server = start_with_lifetime(Duration::from_secs(3)).await;
    let etcd = connect_as_ann(&server).await;
    etcd.put("k", "v").await.unwrap();
    test_faults::crash_auth(&etcd);
    until("the token is replaced", || server.count(AUTHENTICATE) == 2).await;
}

#[tokio::test]
async fn external_token_works_until_expiry() {
    let cluster = start_with_tokens(Tokens::Jwt(Duration::from_secs(5))).await;
    let login = serde_json::json!({"name": "root", "password": "secret"});
    let login = cluster.api(0, "/v3/auth/authenticate", login).await;
    let login = login.unwrap();
    let jwt = login["token"].as_str().unwrap();
    let builder = Client::builder(cluster.endpoints()).token(jwt);
    assert!(!format!("{builder:?}").contains(jwt));
    let etcd = builder.connect().await.unwrap();
    etcd.put("k", "v").await.unwrap();
    until_async("the token expires", async || etcd.get("k").await.is_err()).await;
    let expired = etcd.get("k").await.unwrap_err();
    assert_eq!(expired.kind(), ErrorKind::InvalidAuthToken);
    assert!(!format!("{expired} {expired:?}").contains(jwt));
}
