//! Host names with several addresses, encrypted.

use std::time::{Duration, Instant};

use actix_etcd::{Client, ErrorKind, TlsOptions};
use testbed::{Authority, Cluster, ScriptedServer, Tls};

use crate::support::host_name::{HostName, address};

/// An endpoint for whose name the testbed's certificates are valid.
const ENDPOINT: &str = "https://localhost:2379";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn tls_failure_does_not_hide_next_address() {
    let authority = Authority::new();
    let cluster = Cluster::builder()
        .tls(Tls::server(&authority))
        .start()
        .await;
    let plain = ScriptedServer::start().await;
    let encrypted = address(&cluster.member(0));
    let host = HostName::new([plain.address(), encrypted]);
    let options = || TlsOptions::new().ca_pem(authority.pem());
    let builder = || Client::builder([ENDPOINT]).tls(options());
    let etcd = host.resolved_by(builder()).connect().await.unwrap();
    etcd.put("k", "v").await.unwrap();
    assert!(plain.accepted() >= 1, "the plain address was tried first");
}

#[tokio::test]
async fn tls_failure_at_every_address_ends_connect() {
    let servers = [ScriptedServer::start().await, ScriptedServer::start().await];
    let host = HostName::new(servers.each_ref().map(ScriptedServer::address));
    let started = Instant::now();
    let authority = Authority::new();
    let builder = Client::builder([ENDPOINT])
        .tls(TlsOptions::new().ca_pem(authority.pem()))
        .request_timeout(REQUEST_TIMEOUT);
    let error = host.resolved_by(builder).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TlsFailed, "{error}");
    assert!(started.elapsed() < REQUEST_TIMEOUT / 2, "{error}");
    for server in servers {
        let address = server.address().to_string();
        assert!(error.to_string().contains(&address), "{error}");
    }
}
