//! `Client::sync`: cancelled, concurrent, and with member lists whose addresses must not be used.

use std::time::Duration;

use actix_etcd::{Client, ErrorKind, proto};
use testbed::{Call, Cluster, Fault, Greeting, Reply, STATUS, ScriptedServer, StatusResponse};

use crate::support::{
    auth_cluster::{connect_as_root, missing_token_reply, start_with_auth},
    scripted_put::{PUT, put_reply},
    wait::until,
};

const MEMBER_LIST: &str = "/etcdserverpb.Cluster/MemberList";

/// Starts a server whose member list has one member with these client URLs.
async fn start_listing(client_urls: Vec<String>) -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(MEMBER_LIST, move |_| {
        Reply::message(&proto::MemberListResponse {
            header: Some(proto::ResponseHeader {
                cluster_id: 1,
                ..Default::default()
            }),
            members: vec![proto::Member {
                name: "m".to_owned(),
                client_ur_ls: client_urls.clone(),
                ..Default::default()
            }],
        })
    });
    server
}

/// Starts a server that accepts connections and sends nothing.
async fn start_silent() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.set_greeting(Greeting::Silence);
    server
}

/// Starts a seed with silent members in its list, and connects a client to the seed.
async fn connect_with_silent_members() -> (ScriptedServer, Vec<ScriptedServer>, Client) {
    let silent = vec![
        start_silent().await,
        start_silent().await,
        start_silent().await,
    ];
    let seed = start_listing(silent.iter().map(ScriptedServer::endpoint).collect()).await;
    let builder = Client::builder([seed.endpoint()]).connect_timeout(Duration::from_secs(1));
    let etcd = builder.connect().await.unwrap();
    (seed, silent, etcd)
}

#[tokio::test]
async fn cancelled_sync_adopts_no_unreachable_address() {
    let (seed, silent, etcd) = connect_with_silent_members().await;
    let task = etcd.clone();
    let sync = tokio::spawn(async move { task.sync().await });
    until("the members are dialled", || {
        silent.iter().all(|server| server.accepted() > 0)
    })
    .await;
    assert_eq!(etcd.endpoints(), [seed.endpoint()]);
    sync.abort();
    assert!(sync.await.unwrap_err().is_cancelled());
    // Joins the sync that is running, or starts another one.
    assert_eq!(etcd.sync().await.unwrap(), [seed.endpoint()]);
    assert_eq!(etcd.endpoints(), [seed.endpoint()]);
}

#[tokio::test]
async fn concurrent_syncs_are_joined() {
    let (seed, _silent, etcd) = connect_with_silent_members().await;
    let syncs: Vec<_> = (0..5)
        .map(|_| {
            let etcd = etcd.clone();
            tokio::spawn(async move { etcd.sync().await })
        })
        .collect();
    for sync in syncs {
        assert_eq!(sync.await.unwrap().unwrap(), [seed.endpoint()]);
    }
    assert_eq!(etcd.endpoints(), [seed.endpoint()]);
    assert_eq!(seed.count(MEMBER_LIST), 1);
}

#[tokio::test]
async fn sync_fails_when_client_is_shut_down_meanwhile() {
    let (_seed, silent, etcd) = connect_with_silent_members().await;
    let task = etcd.clone();
    let sync = tokio::spawn(async move { task.sync().await });
    until("the members are dialled", || silent[0].accepted() > 0).await;
    etcd.shutdown().await;
    let error = sync.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shutdown, "{error}");
}

/// Returns the calls that carried a token.
fn calls_with_token(server: &ScriptedServer) -> Vec<Call> {
    let mut calls = server.all_calls();
    calls.retain(|call| call.metadata.contains_key("token"));
    calls
}

async fn connect_with_token(server: &ScriptedServer) -> Client {
    let builder = Client::builder([server.endpoint()]).token("secret");
    builder.connect().await.unwrap()
}

/// Starts a server that refuses requests without a token and shows no cluster id to them.
async fn start_unidentified() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(STATUS, |call| {
        if call.metadata.contains_key("token") {
            Reply::message(&StatusResponse::healthy())
        } else {
            missing_token_reply()
        }
    });
    server
}

/// Starts a member of another cluster.
async fn start_foreign() -> ScriptedServer {
    let server = ScriptedServer::start().await;
    server.on(STATUS, |_| Reply::message(&StatusResponse::of_cluster(2)));
    server
}

#[tokio::test]
async fn token_is_sent_only_to_shown_cluster() {
    let (own, foreign) = (ScriptedServer::start().await, start_foreign().await);
    let unidentified = start_unidentified().await;
    let listed = [&own, &foreign, &unidentified].map(ScriptedServer::endpoint);
    let seed = start_listing(listed.to_vec()).await;
    let etcd = connect_with_token(&seed).await;
    assert_eq!(etcd.sync().await.unwrap(), [own.endpoint()]);
    for server in [&foreign, &unidentified] {
        assert!(server.count(STATUS) > 0, "the address must be checked");
        let sent = calls_with_token(server);
        assert!(sent.is_empty(), "{sent:?}");
    }
    until("the adopted member has received the token", || {
        !calls_with_token(&own).is_empty()
    })
    .await;
}

/// An adopted address that later leads to a member without a cluster id is not used.
#[tokio::test]
async fn adopted_address_must_show_cluster_on_every_connection() {
    let member = ScriptedServer::start().await;
    let seed = start_listing(vec![member.endpoint()]).await;
    seed.on(PUT, |_| put_reply());
    let etcd = connect_with_token(&seed).await;
    assert_eq!(etcd.sync().await.unwrap(), [member.endpoint()]);
    until("the member has received the token", || {
        !calls_with_token(&member).is_empty()
    })
    .await;
    member.on(STATUS, |_| missing_token_reply());
    let before = calls_with_token(&member).len();
    let connections = member.accepted();
    member.close_connections();
    until("the address is dialled again", || {
        member.accepted() > connections + 1
    })
    .await;
    assert_eq!(calls_with_token(&member).len(), before);
    let put = etcd.put("k", "v").timeout(Duration::from_secs(20));
    put.await.expect("the seed is used again");
}

/// An endpoint given by the user receives the token only after it has shown the client's cluster, too.
#[tokio::test]
async fn foreign_endpoint_of_user_gets_no_token() {
    let (own, foreign) = (ScriptedServer::start().await, start_foreign().await);
    let etcd = connect_with_token(&own).await;
    assert!(!calls_with_token(&own).is_empty());
    let both = [own.endpoint(), foreign.endpoint()];
    etcd.set_endpoints(both).await.unwrap();
    until("the foreign endpoint is refused", || {
        let error = etcd.connectivity().remove(1).last_error;
        error.is_some_and(|error| error.kind() == ErrorKind::ClusterChanged)
    })
    .await;
    let sent = calls_with_token(&foreign);
    assert!(sent.is_empty(), "{sent:?}");
}

/// With authentication enabled, the members show the cluster id only in the refusal of a watch.
#[tokio::test]
async fn members_with_auth_are_adopted() {
    let cluster = start_with_auth(Cluster::builder().members(3)).await;
    let etcd = connect_as_root(&cluster).await;
    etcd.set_endpoints([&cluster.endpoints()[0]]).await.unwrap();
    cluster.member(2).client_link().set(Fault::Refuse);
    let mut adopted = etcd.sync().await.unwrap();
    adopted.sort();
    let mut reachable = cluster.endpoints()[..2].to_vec();
    reachable.sort();
    assert_eq!(adopted, reachable);
    etcd.put("k", "v").await.unwrap();
}

#[tokio::test]
async fn member_list_cannot_lead_to_local_targets() {
    let socket = std::env::temp_dir().join(format!("actix-etcd-list-{}.sock", std::process::id()));
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let seed = start_listing(vec![
        format!("unix://{}", socket.display()),
        "http://169.254.169.254:80".to_owned(),
        "http://[fe80::1]:2379".to_owned(),
    ])
    .await;
    let etcd = Client::connect([seed.endpoint()]).await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), [seed.endpoint()]);
    let dialled = tokio::time::timeout(Duration::from_millis(100), listener.accept()).await;
    assert!(dialled.is_err(), "the socket must not be dialled");
    std::fs::remove_file(&socket).unwrap();
}
