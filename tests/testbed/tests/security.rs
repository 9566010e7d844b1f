//! Clusters with TLS, and with short-lived auth tokens.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use testbed::{Authority, Cluster, Tls, Tokens, encode};

/// Lifetime of a token; etcd accepts only whole seconds.
const TOKEN_TTL: Duration = Duration::from_secs(1);

/// Sends an HTTPS request with curl. Returns whether it succeeded, or `None` without curl.
fn https_request(
    cluster: &Cluster,
    authority: &Authority,
    client: Option<&testbed::Certificate>,
) -> Option<bool> {
    let file = |name: &str, text: &str| {
        let path = cluster.folder().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--fail", "--max-time", "5", "--cacert"])
        .arg(file("ca.pem", authority.pem()));
    if let Some(client) = client {
        command
            .arg("--cert")
            .arg(file("client.pem", &client.certificate));
        command.arg("--key").arg(file("client.key", &client.key));
    }
    command
        .arg(format!("{}/version", cluster.endpoints()[0]))
        .stdout(Stdio::null());
    command.status().ok().map(|status| status.success())
}

#[tokio::test]
async fn every_version_requires_client_certificates() {
    for version in testbed::VERSIONS {
        let (authority, other_authority) = (Authority::new(), Authority::new());
        let cluster = Cluster::builder()
            .version(version)
            .tls(Tls::mutual(&authority))
            .start()
            .await;
        assert!(cluster.endpoints()[0].starts_with("https://"));
        cluster
            .api(
                0,
                "/v3/kv/put",
                json!({"key": encode("k"), "value": encode("v")}),
            )
            .await
            .unwrap();
        let client = authority.client("root");
        let Some(trusted) = https_request(&cluster, &authority, Some(&client)) else {
            // Written past the capture of the test runner, so that a passing run also shows it.
            let _ = writeln!(
                std::io::stderr(),
                "\nNOT CHECKED: TLS handshakes, because curl is missing"
            );
            return;
        };
        assert!(trusted, "etcd {version}");
        assert_eq!(
            https_request(&cluster, &authority, None),
            Some(false),
            "etcd {version}"
        );
        assert_eq!(
            https_request(&cluster, &other_authority, Some(&client)),
            Some(false),
            "etcd {version}"
        );
        cluster.replace_certificate(&authority.expired_server());
        assert_eq!(
            https_request(&cluster, &authority, Some(&client)),
            Some(false),
            "etcd {version}"
        );
        cluster.replace_certificate(&authority.server_named(&["elsewhere.example"]));
        assert_eq!(
            https_request(&cluster, &authority, Some(&client)),
            Some(false),
            "etcd {version}"
        );
        cluster.replace_certificate(&authority.server());
        assert_eq!(
            https_request(&cluster, &authority, Some(&client)),
            Some(true),
            "etcd {version}"
        );
    }
}

#[tokio::test]
async fn tokens_of_both_kinds_expire() {
    for version in ["3.4", "3.7"] {
        for tokens in [Tokens::Simple(TOKEN_TTL), Tokens::Jwt(TOKEN_TTL)] {
            let cluster = Cluster::builder()
                .version(version)
                .tokens(tokens)
                .start()
                .await;
            cluster.enable_auth("root", "secret").await;
            let login = json!({"name": "root", "password": "secret"});
            let login = cluster
                .api(0, "/v3/auth/authenticate", login)
                .await
                .unwrap();
            let token = login["token"].as_str().unwrap();
            assert_eq!(
                token.starts_with("eyJ"),
                matches!(tokens, Tokens::Jwt(_)),
                "{token}, etcd {version}"
            );
            let started = Instant::now();
            let denied = loop {
                // Each use extends a simple token, so the test waits for longer than the lifetime.
                tokio::time::sleep(TOKEN_TTL + TOKEN_TTL / 2).await;
                if let Err(error) = cluster
                    .api_with_token(0, token, "/v3/kv/range", json!({"key": encode("k")}))
                    .await
                {
                    break error;
                }
                assert!(
                    started.elapsed() < Duration::from_secs(20),
                    "{tokens:?} did not expire, etcd {version}"
                );
            };
            assert!(
                denied.contains("invalid auth token"),
                "{denied}, etcd {version}"
            );
            // The testbed renews its own token.
            cluster
                .api(0, "/v3/kv/range", json!({"key": encode("k")}))
                .await
                .unwrap();
        }
    }
}
