//! TLS connections to real members, and the errors of invalid certificates.

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

use crate::support::{
    process_isolation::{ChildTest, child_test},
    wait::{TEST_TIMEOUT, until, until_async},
};

async fn start_cluster(tls: Tls) -> Cluster {
    Cluster::builder().tls(tls).start().await
}

fn trusting(authority: &Authority) -> TlsOptions {
    TlsOptions::new().ca_pem(authority.pem())
}

async fn connect(cluster: &Cluster, tls: TlsOptions) -> Client {
    let builder = Client::builder(cluster.endpoints()).tls(tls);
    builder.connect().await.unwrap()
}

/// Returns the error text of `connect`. It must fail before the connect timeout, and long before the request timeout.
async fn connect_error(cluster: &Cluster, tls: TlsOptions) -> String {
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

/// Returns the last error of the first endpoint.
fn last_error(etcd: &Client) -> Option<Error> {
    let endpoints = etcd.connectivity();
    endpoints.first()?.last_error.clone()
}

fn write_file(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.folder().join(name);
    fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn encrypted_cluster_survives_member_failure() {
    let authority = Authority::new();
    let cluster = Cluster::builder()
        .members(3)
        .tls(Tls::server(&authority))
        .start()
        .await;
    let etcd = connect(&cluster, trusting(&authority)).await;
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
async fn client_certificate_grants_access() {
    let authority = Authority::new();
    let cluster = start_cluster(Tls::mutual(&authority)).await;
    let Certificate { certificate, key } = authority.client("ann");
    let pem = trusting(&authority).client_certificate_pem(&certificate, &key);
    let files = TlsOptions::new()
        .ca_file(write_file(&cluster, "ca.pem", authority.pem()))
        .client_certificate_files(
            write_file(&cluster, "ann.crt", &certificate),
            write_file(&cluster, "ann.key", &key),
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
async fn certificate_common_name_is_user() {
    let authority = Authority::new();
    let cluster = start_cluster(Tls::mutual(&authority)).await;
    cluster.enable_auth("root", "secret").await;
    cluster.add_user("ann", "unused", Some("a/")).await;
    let Certificate { certificate, key } = authority.client("ann");
    let tls = trusting(&authority).client_certificate_pem(certificate, key);
    let etcd = connect(&cluster, tls).await;
    etcd.put("a/k", "v").await.unwrap();
    let denied = etcd.put("b/k", "v").await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    // Access remains after a change of the users.
    cluster.add_user("bob", "word", None).await;
    etcd.put("a/k", "w").await.unwrap();
}

const CHILD_ENDPOINT: &str = "ACTIX_ETCD_TLS_ENDPOINT";
const NEW_ROOTS: &str = "ACTIX_ETCD_TLS_NEW_ROOTS";
const SYSTEM_ROOTS: &str = "SSL_CERT_FILE";

/// Runs a test in a child process, because the system roots apply to a whole process. Returns whether the test passed,
/// and its output.
fn run_in_child(
    test: ChildTest,
    cluster: &Cluster,
    roots: &Authority,
    new_roots: &Authority,
) -> (bool, String) {
    let child = test
        .env(CHILD_ENDPOINT, &cluster.endpoints()[0])
        .env(SYSTEM_ROOTS, write_file(cluster, "system.pem", roots.pem()))
        .env(NEW_ROOTS, write_file(cluster, "new.pem", new_roots.pem()))
        .env_remove("SSL_CERT_DIR")
        .run();
    (child.passed, child.stdout + &child.stderr)
}

#[tokio::test]
async fn https_without_options_trusts_system_roots() {
    if let Ok(endpoint) = std::env::var(CHILD_ENDPOINT) {
        let etcd = Client::connect([endpoint]).await.unwrap();
        etcd.put("k", "v").await.unwrap();
        return;
    }
    let (authority, other_authority) = (Authority::new(), Authority::new());
    let cluster = start_cluster(Tls::server(&authority)).await;
    let (connected, output) = run_in_child(child_test!(), &cluster, &authority, &authority);
    assert!(connected, "{output}");
    let (connected, output) =
        run_in_child(child_test!(), &cluster, &other_authority, &other_authority);
    assert!(
        !connected && output.contains("unknown authority"),
        "{output}"
    );
}

#[tokio::test]
async fn changed_system_roots_are_reloaded() {
    if let Ok(endpoint) = std::env::var(CHILD_ENDPOINT) {
        let etcd = Client::builder([endpoint]).connect_lazy().await.unwrap();
        until("the first attempt fails", || last_error(&etcd).is_some()).await;
        fs::copy(
            std::env::var_os(NEW_ROOTS).unwrap(),
            std::env::var_os(SYSTEM_ROOTS).unwrap(),
        )
        .unwrap();
        etcd.put("k", "v").await.unwrap();
        return;
    }
    let (authority, other_authority) = (Authority::new(), Authority::new());
    let cluster = start_cluster(Tls::server(&authority)).await;
    let (connected, output) = run_in_child(child_test!(), &cluster, &other_authority, &authority);
    assert!(connected, "{output}");
}

#[tokio::test]
async fn certificate_errors_name_their_cause() {
    let (authority, other_authority) = (Authority::new(), Authority::new());
    let cluster = start_cluster(Tls::server(&authority)).await;
    let unknown = connect_error(&cluster, trusting(&other_authority)).await;
    assert!(unknown.contains("unknown authority"), "{unknown}");
    let system = connect_error(&cluster, TlsOptions::new()).await;
    assert!(system.contains("authorit"), "{system}");
    cluster.replace_certificate(&authority.expired_server());
    let expired = connect_error(&cluster, trusting(&authority)).await;
    assert!(expired.contains("has expired"), "{expired}");
    cluster.replace_certificate(&authority.server_named(&["elsewhere.example"]));
    let misnamed = connect_error(&cluster, trusting(&authority)).await;
    assert!(
        misnamed.contains("other names than `127.0.0.1`"),
        "{misnamed}"
    );
    let endpoint = cluster.endpoints().remove(0);
    let named = trusting(&authority).server_name(&endpoint, "elsewhere.example");
    let etcd = Client::builder([endpoint]).tls(named).connect().await;
    etcd.unwrap().put("k", "v").await.unwrap();
}

/// Two endpoints of one member: each is checked against its own server name.
#[tokio::test]
async fn each_endpoint_has_its_own_server_name() {
    let authority = Authority::new();
    let tls = Tls::server(&authority);
    let certificate = authority.server_named(&["one.example", "two.example"]);
    let cluster = start_cluster(tls.with_certificate(certificate)).await;
    let first = cluster.endpoints().remove(0);
    let second = first.replace("127.0.0.1", "localhost");
    let second_without_scheme = second.replace("https://", "");
    let options = || {
        trusting(&authority)
            .server_name(&first, "one.example")
            .server_name(&second_without_scheme, "two.example")
    };
    // Each client has its own options: in a resumed session, the server sends no certificate.
    let builder = || Client::builder([&first, &second]).tls(options());
    let is_ready = |etcd: &Client, endpoint: usize| etcd.connectivity()[endpoint].state == Ready;
    let etcd = builder().connect().await.unwrap();
    until("both endpoints are ready", || {
        is_ready(&etcd, 0) && is_ready(&etcd, 1)
    })
    .await;
    cluster.replace_certificate(&authority.server_named(&["two.example"]));
    let etcd = builder().connect().await.unwrap();
    until("the second endpoint is ready", || is_ready(&etcd, 1)).await;
    until("the first endpoint is refused", || {
        last_error(&etcd).is_some_and(|error| error.to_string().contains("`one.example`"))
    })
    .await;
}

#[tokio::test]
async fn unusable_client_certificate_is_reported() {
    for max_version in ["TLS1.2", "TLS1.3"] {
        check_client_certificate_errors(max_version).await;
    }
}

async fn check_client_certificate_errors(max_version: &str) {
    let (authority, other_authority) = (Authority::new(), Authority::new());
    let cluster = Cluster::builder()
        .tls(Tls::mutual(&authority))
        .arg(format!("--tls-max-version={max_version}"));
    let cluster = cluster.start().await;
    let missing = connect_error(&cluster, trusting(&authority)).await;
    assert!(
        missing.contains("client certificate, and none was given"),
        "{missing}"
    );
    let Certificate { certificate, key } = other_authority.client("ann");
    let foreign = trusting(&authority).client_certificate_pem(certificate, key);
    let foreign = connect_error(&cluster, foreign).await;
    assert!(
        foreign.contains("not accept the client certificate"),
        "{foreign}"
    );
    let other = authority.client("bob");
    let mixed = trusting(&authority)
        .client_certificate_pem(authority.client("ann").certificate, &other.key);
    let mixed = connect_error(&cluster, mixed).await;
    assert!(mixed.contains("cannot be used"), "{mixed}");
    assert!(!mixed.contains(other.key.lines().nth(1).unwrap()));
}

#[tokio::test]
async fn wrong_scheme_is_reported() {
    let authority = Authority::new();
    let cluster = start_cluster(Tls::server(&authority)).await;
    let plain_endpoint = cluster.endpoints()[0].replace("https", "http");
    let started = Instant::now();
    let builder = Client::builder([plain_endpoint]).request_timeout(TEST_TIMEOUT);
    let refused = builder.connect().await.unwrap_err();
    assert!(refused.to_string().contains("https://"), "{refused}");
    assert_eq!(refused.kind(), ErrorKind::TlsFailed, "{refused}");
    assert!(started.elapsed() < TEST_TIMEOUT / 2, "{refused}");
    let plain_cluster = Cluster::start(1).await;
    let https_endpoint = plain_cluster.endpoints()[0].replace("http", "https");
    let refused = Client::builder([https_endpoint])
        .tls(trusting(&authority))
        .request_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("http://"), "{refused}");
}

#[tokio::test]
async fn changed_certificates_are_reloaded() {
    let (authority, other_authority) = (Authority::new(), Authority::new());
    let cluster = start_cluster(Tls::mutual(&authority)).await;
    let wrong = other_authority.client("ann");
    let ca = write_file(&cluster, "ca.pem", other_authority.pem());
    let certificate = write_file(&cluster, "ann.crt", &wrong.certificate);
    let key = write_file(&cluster, "ann.key", &wrong.key);
    let etcd = Client::builder(cluster.endpoints())
        .tls(
            TlsOptions::new()
                .ca_file(&ca)
                .client_certificate_files(&certificate, &key),
        )
        .connect_lazy()
        .await
        .unwrap();
    let timeout = Duration::from_millis(500);
    assert!(etcd.put("k", "v").timeout(timeout).await.is_err());
    let right = authority.client("ann");
    fs::write(&ca, authority.pem()).unwrap();
    fs::write(&certificate, &right.certificate).unwrap();
    fs::write(&key, &right.key).unwrap();
    etcd.put("k", "v").await.unwrap();
    // If a file cannot be read, the last valid certificates remain in use.
    fs::remove_file(&key).unwrap();
    cluster.member(0).client_link().reset_now();
    until_async("the client is connected again", async || {
        etcd.put("k", "w").await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn unusable_certificate_files_are_reported() {
    let authority = Authority::new();
    let cluster = start_cluster(Tls::server(&authority)).await;
    let missing = connect_error(&cluster, TlsOptions::new().ca_file("no/such/file")).await;
    assert!(missing.contains("no/such/file cannot be read"), "{missing}");
    let nonsense = connect_error(&cluster, TlsOptions::new().ca_pem("nonsense")).await;
    assert!(nonsense.contains("no certificate found"), "{nonsense}");
}

#[tokio::test]
async fn mixed_plain_endpoints_require_option() {
    let authority = Authority::new();
    let cluster = start_cluster(Tls::server(&authority)).await;
    let plain_cluster = Cluster::start(1).await;
    let endpoints = [
        cluster.endpoints().remove(0),
        plain_cluster.endpoints().remove(0),
    ];
    let builder = Client::builder(endpoints.clone()).tls(trusting(&authority));
    let refused = builder.connect_lazy().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidEndpoint);
    assert!(refused.to_string().contains("not encrypted"), "{refused}");
    let etcd = Client::builder([&endpoints[0]])
        .tls(trusting(&authority))
        .connect()
        .await
        .unwrap();
    let refused = etcd.set_endpoints(endpoints.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidEndpoint);
    let allowing = trusting(&authority).allow_plain_endpoints();
    let builder = Client::builder(endpoints).tls(allowing);
    builder.connect_lazy().await.unwrap();
}

#[tokio::test]
async fn advertised_plain_endpoint_is_not_dialled() {
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
    assert_eq!(
        plain.accepted(),
        0,
        "the plain endpoint must not be dialled"
    );
    let allowing = trusting(&authority).allow_plain_endpoints();
    let etcd = builder().tls(allowing).connect().await.unwrap();
    etcd.sync().await.unwrap();
    assert!(
        plain.accepted() > 0,
        "the plain endpoint is dialled if allowed"
    );
}

#[tokio::test]
async fn value_written_over_tls_is_stored() {
    let authority = Authority::new();
    let cluster = start_cluster(Tls::server(&authority)).await;
    let etcd = connect(&cluster, trusting(&authority)).await;
    etcd.put("k", "v").await.unwrap();
    let stored = cluster
        .api(0, "/v3/kv/range", json!({"key": encode("k")}))
        .await
        .unwrap();
    assert_eq!(stored["kvs"][0]["value"], encode("v"));
}
