//! Encrypted connections to real members, and everything that can be wrong with a certificate.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use actix_etcd::{
    Client, Error, ErrorKind, Outcome, TlsOptions, balancer::ConnectivityState::Ready,
};
use serde_json::json;
use testbed::{Authority, Certificate, Cluster, ScriptedServer, Tls, encode};

use crate::support::wait::{until, until_async};

async fn cluster(tls: Tls) -> Cluster {
    Cluster::builder().tls(tls).start().await
}

fn trusting(authority: &Authority) -> TlsOptions {
    TlsOptions::new().ca_pem(authority.pem())
}

/// What `connect` says of endpoints that cannot be used: as soon as it knows, long before a request would be given up.
async fn complaint(cluster: &Cluster, tls: TlsOptions) -> String {
    let connect_timeout = Duration::from_secs(10);
    let started = Instant::now();
    let refused = Client::builder(cluster.endpoints())
        .tls(tls)
        .connect_timeout(connect_timeout)
        .request_timeout(connect_timeout * 6)
        .connect()
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TlsFailed, "{refused}");
    assert_eq!(refused.outcome(), Outcome::NotSent);
    assert!(started.elapsed() < connect_timeout, "{refused}");
    refused.to_string()
}

/// What was wrong with the first endpoint.
fn complaint_of(etcd: &Client) -> Option<Error> {
    let endpoints = etcd.connectivity();
    endpoints.first()?.last_error.clone()
}

fn file(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.folder().join(name);
    fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn an_encrypted_cluster_is_used_like_any_other() {
    let authority = Authority::new();
    let cluster = Cluster::builder()
        .members(3)
        .tls(Tls::server(&authority))
        .start()
        .await;
    let etcd = Client::builder(cluster.endpoints())
        .tls(trusting(&authority))
        .connect()
        .await
        .unwrap();
    let large = vec![b'v'; 256 << 10];
    for member in cluster.members() {
        etcd.put("k", large.clone()).await.unwrap();
        let found = etcd.get("k").await.unwrap();
        assert_eq!(found.first().unwrap().value, large);
        let status = etcd.maintenance().status().at(member.endpoint());
        assert_eq!(status.await.unwrap().header.member_id, member.id());
    }
    cluster.member(0).kill();
    for _ in 0..20 {
        etcd.get("k").await.unwrap();
    }
}

#[tokio::test]
async fn a_client_certificate_opens_a_cluster_that_wants_one() {
    let authority = Authority::new();
    let cluster = cluster(Tls::mutual(&authority)).await;
    let Certificate { certificate, key } = authority.client("ann");
    let pem = trusting(&authority).client_certificate_pem(&certificate, &key);
    let files = TlsOptions::new()
        .ca_file(file(&cluster, "ca.pem", authority.pem()))
        .client_certificate_files(
            file(&cluster, "ann.crt", &certificate),
            file(&cluster, "ann.key", &key),
        );
    let shown = format!("{pem:?} {files:?}");
    let secret = key.lines().nth(1).unwrap();
    assert!(!shown.contains(secret), "{shown}");
    for options in [pem, files] {
        let builder = Client::builder(cluster.endpoints()).tls(options);
        assert!(!format!("{builder:?}").contains(secret));
        let etcd = builder.connect().await.unwrap();
        etcd.put("k", "v").await.unwrap();
    }
}

#[tokio::test]
async fn the_name_in_the_certificate_is_the_user_where_there_is_no_token() {
    let authority = Authority::new();
    let cluster = cluster(Tls::mutual(&authority)).await;
    cluster.enable_auth("root", "secret").await;
    cluster.add_user("ann", "unused", Some("a/")).await;
    let Certificate { certificate, key } = authority.client("ann");
    let etcd = Client::builder(cluster.endpoints())
        .tls(trusting(&authority).client_certificate_pem(certificate, key))
        .connect()
        .await
        .unwrap();
    etcd.put("a/k", "v").await.unwrap();
    let denied = etcd.put("b/k", "v").await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    // A change of users makes nobody a stranger.
    cluster.add_user("bob", "word", None).await;
    etcd.put("a/k", "w").await.unwrap();
}

const CHILD: &str = "ACTIX_ETCD_TLS_ENDPOINT";
const BETTER_ROOTS: &str = "ACTIX_ETCD_TLS_ROOTS";
const ROOTS: &str = "SSL_CERT_FILE";

/// What a system trusts is a matter of the whole process, so each has one of its own.
fn alone(test: &str, cluster: &Cluster, roots: &Authority, better: &Authority) -> (bool, String) {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            &format!("connection::tls::{test}"),
        ])
        .env(CHILD, &cluster.endpoints()[0])
        .env(ROOTS, file(cluster, "system.pem", roots.pem()))
        .env(BETTER_ROOTS, file(cluster, "better.pem", better.pem()))
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (child.status.success() && said.contains("1 passed"), said)
}

#[tokio::test]
async fn https_without_options_trusts_whom_the_system_trusts() {
    if let Ok(endpoint) = std::env::var(CHILD) {
        let etcd = Client::connect([endpoint]).await.unwrap();
        etcd.put("k", "v").await.unwrap();
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let cluster = cluster(Tls::server(&authority)).await;
    let test = "https_without_options_trusts_whom_the_system_trusts";
    let (connected, said) = alone(test, &cluster, &authority, &authority);
    assert!(connected, "{said}");
    let (connected, said) = alone(test, &cluster, &stranger, &stranger);
    assert!(!connected && said.contains("unknown authority"), "{said}");
}

#[tokio::test]
async fn the_systems_authorities_are_read_again_when_they_change() {
    if let Ok(endpoint) = std::env::var(CHILD) {
        let etcd = Client::builder([endpoint]).connect_lazy().await.unwrap();
        until("it was refused", || complaint_of(&etcd).is_some()).await;
        fs::copy(
            std::env::var_os(BETTER_ROOTS).unwrap(),
            std::env::var_os(ROOTS).unwrap(),
        )
        .unwrap();
        etcd.put("k", "v").await.unwrap();
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let cluster = cluster(Tls::server(&authority)).await;
    let test = "the_systems_authorities_are_read_again_when_they_change";
    let (connected, said) = alone(test, &cluster, &stranger, &authority);
    assert!(connected, "{said}");
}

#[tokio::test]
async fn each_thing_that_is_wrong_with_a_certificate_is_told_by_its_name() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let cluster = cluster(Tls::server(&authority)).await;
    let unknown = complaint(&cluster, trusting(&stranger)).await;
    assert!(unknown.contains("unknown authority"), "{unknown}");
    let system = complaint(&cluster, TlsOptions::new()).await;
    assert!(system.contains("authorit"), "{system}");
    cluster.replace_certificate(&authority.expired_server());
    let expired = complaint(&cluster, trusting(&authority)).await;
    assert!(expired.contains("has expired"), "{expired}");
    cluster.replace_certificate(&authority.server_named(&["elsewhere.example"]));
    let misnamed = complaint(&cluster, trusting(&authority)).await;
    assert!(
        misnamed.contains("other names than `127.0.0.1`"),
        "{misnamed}"
    );
    let endpoint = cluster.endpoints().remove(0);
    let named = trusting(&authority).server_name(&endpoint, "elsewhere.example");
    let etcd = Client::builder([endpoint]).tls(named).connect().await;
    etcd.unwrap().put("k", "v").await.unwrap();
}

/// Two endpoints of one member: each is checked against its own name, not against that of the first.
#[tokio::test]
async fn every_endpoint_has_a_name_of_its_own() {
    let authority = Authority::new();
    let tls = Tls::server(&authority);
    let both = authority.server_named(&["one.example", "two.example"]);
    let cluster = cluster(tls.with_certificate(both)).await;
    let first = cluster.endpoints().remove(0);
    let second = first.replace("127.0.0.1", "localhost");
    let bare = second.replace("https://", "");
    let options = || {
        trusting(&authority)
            .server_name(&first, "one.example")
            .server_name(&bare, "two.example")
    };
    // Each has options of its own: a session that is resumed shows no certificate.
    let builder = || Client::builder([&first, &second]).tls(options());
    let is_ready = |etcd: &Client, endpoint: usize| etcd.connectivity()[endpoint].state == Ready;
    let etcd = builder().connect().await.unwrap();
    until("both are used", || is_ready(&etcd, 0) && is_ready(&etcd, 1)).await;
    cluster.replace_certificate(&authority.server_named(&["two.example"]));
    let etcd = builder().connect().await.unwrap();
    until("the second is used", || is_ready(&etcd, 1)).await;
    until("the first is refused", || {
        complaint_of(&etcd).is_some_and(|error| error.to_string().contains("`one.example`"))
    })
    .await;
}

#[tokio::test]
async fn a_missing_or_foreign_client_certificate_is_told() {
    for newest in ["TLS1.2", "TLS1.3"] {
        missing_and_foreign(newest).await;
    }
}

async fn missing_and_foreign(newest: &str) {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let cluster = Cluster::builder()
        .tls(Tls::mutual(&authority))
        .arg(format!("--tls-max-version={newest}"));
    let cluster = cluster.start().await;
    let missing = complaint(&cluster, trusting(&authority)).await;
    assert!(
        missing.contains("client certificate, and none was given"),
        "{missing}"
    );
    let Certificate { certificate, key } = stranger.client("ann");
    let foreign = trusting(&authority).client_certificate_pem(certificate, key);
    let foreign = complaint(&cluster, foreign).await;
    assert!(
        foreign.contains("not accept the client certificate"),
        "{foreign}"
    );
    let other = authority.client("bob");
    let mixed = trusting(&authority)
        .client_certificate_pem(authority.client("ann").certificate, &other.key);
    let mixed = complaint(&cluster, mixed).await;
    assert!(mixed.contains("cannot be used"), "{mixed}");
    assert!(!mixed.contains(other.key.lines().nth(1).unwrap()));
}

#[tokio::test]
async fn a_scheme_that_does_not_fit_the_port_is_told() {
    let authority = Authority::new();
    let cluster = cluster(Tls::server(&authority)).await;
    let plain = cluster.endpoints()[0].replace("https", "http");
    let refused = Client::builder([plain])
        .request_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("https://"), "{refused}");
    let open = Cluster::start(1).await;
    let encrypted = open.endpoints()[0].replace("http", "https");
    let refused = Client::builder([encrypted])
        .tls(trusting(&authority))
        .request_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("http://"), "{refused}");
}

#[tokio::test]
async fn certificates_are_read_again_when_they_change() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let cluster = cluster(Tls::mutual(&authority)).await;
    let wrong = stranger.client("ann");
    let ca = file(&cluster, "ca.pem", stranger.pem());
    let certificate = file(&cluster, "ann.crt", &wrong.certificate);
    let key = file(&cluster, "ann.key", &wrong.key);
    let etcd = Client::builder(cluster.endpoints())
        .tls(
            TlsOptions::new()
                .ca_file(&ca)
                .client_certificate_files(&certificate, &key),
        )
        .connect_lazy()
        .await
        .unwrap();
    let patience = Duration::from_millis(500);
    assert!(etcd.put("k", "v").timeout(patience).await.is_err());
    let right = authority.client("ann");
    fs::write(&ca, authority.pem()).unwrap();
    fs::write(&certificate, &right.certificate).unwrap();
    fs::write(&key, &right.key).unwrap();
    etcd.put("k", "v").await.unwrap();
    // A file that cannot be read leaves the last good ones in force.
    fs::remove_file(&key).unwrap();
    cluster.member(0).client_link().reset_now();
    until_async("it is connected again", async || {
        etcd.put("k", "w").await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn files_that_are_missing_or_no_certificates_are_told() {
    let authority = Authority::new();
    let cluster = cluster(Tls::server(&authority)).await;
    let missing = complaint(&cluster, TlsOptions::new().ca_file("no/such/file")).await;
    assert!(missing.contains("no/such/file cannot be read"), "{missing}");
    let nonsense = complaint(&cluster, TlsOptions::new().ca_pem("nonsense")).await;
    assert!(nonsense.contains("no certificate found"), "{nonsense}");
}

#[tokio::test]
async fn plain_endpoints_beside_encrypted_ones_must_be_wanted() {
    let authority = Authority::new();
    let cluster = cluster(Tls::server(&authority)).await;
    let open = Cluster::start(1).await;
    let both = [cluster.endpoints().remove(0), open.endpoints().remove(0)];
    let builder = Client::builder(both.clone()).tls(trusting(&authority));
    let refused = builder.connect_lazy().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidEndpoint);
    assert!(refused.to_string().contains("not encrypted"), "{refused}");
    let etcd = Client::builder([&both[0]])
        .tls(trusting(&authority))
        .connect()
        .await
        .unwrap();
    let refused = etcd.set_endpoints(both.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidEndpoint);
    let allowed = trusting(&authority).allow_plain_endpoints();
    let builder = Client::builder(both).tls(allowed);
    builder.connect_lazy().await.unwrap();
}

#[tokio::test]
async fn members_that_advertise_plain_text_lead_nobody_there() {
    let authority = Authority::new();
    let plain = ScriptedServer::start().await;
    let cluster = Cluster::builder()
        .tls(Tls::server(&authority))
        .arg(format!("--advertise-client-urls={}", plain.endpoint()))
        .start()
        .await;
    let builder = || Client::builder(cluster.endpoints());
    let etcd = builder().tls(trusting(&authority)).connect().await.unwrap();
    assert_eq!(etcd.sync().await.unwrap(), cluster.endpoints());
    assert_eq!(plain.accepted(), 0, "it was dialled");
    let allowing = trusting(&authority).allow_plain_endpoints();
    let etcd = builder().tls(allowing).connect().await.unwrap();
    etcd.sync().await.unwrap();
    assert!(plain.accepted() > 0, "who allows it gets it");
}

#[tokio::test]
async fn what_was_written_in_the_dark_is_read_in_the_open() {
    let authority = Authority::new();
    let cluster = cluster(Tls::server(&authority)).await;
    let etcd = Client::builder(cluster.endpoints())
        .tls(trusting(&authority))
        .connect()
        .await
        .unwrap();
    etcd.put("k", "v").await.unwrap();
    let read = cluster
        .api(0, "/v3/kv/range", json!({"key": encode("k")}))
        .await
        .unwrap();
    assert_eq!(read["kvs"][0]["value"], encode("v"));
}
