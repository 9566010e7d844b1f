//! Clusters with TLS and with tokens that end soon.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use testbed::{Authority, Cluster, Tls, Tokens, encode};

/// How long a token lives: etcd counts in seconds.
const LIFE: Duration = Duration::from_secs(1);

/// Speaks TLS as any client would; tells whether the server was trusted and answered.
fn handshake(
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
async fn every_version_serves_tls_and_wants_client_certificates() {
    for version in testbed::VERSIONS {
        let (authority, stranger) = (Authority::new(), Authority::new());
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
        let Some(trusted) = handshake(&cluster, &authority, Some(&client)) else {
            // Past what the test runner captures: who only sees that it passed has to see this.
            let _ = writeln!(
                std::io::stderr(),
                "\nNOT CHECKED: TLS handshakes, as curl is missing"
            );
            return;
        };
        assert!(trusted, "on {version}");
        assert_eq!(
            handshake(&cluster, &authority, None),
            Some(false),
            "on {version}"
        );
        assert_eq!(
            handshake(&cluster, &stranger, Some(&client)),
            Some(false),
            "on {version}"
        );
        cluster.replace_certificate(&authority.expired_server());
        assert_eq!(
            handshake(&cluster, &authority, Some(&client)),
            Some(false),
            "on {version}"
        );
        cluster.replace_certificate(&authority.server_named(&["elsewhere.example"]));
        assert_eq!(
            handshake(&cluster, &authority, Some(&client)),
            Some(false),
            "on {version}"
        );
        cluster.replace_certificate(&authority.server());
        assert_eq!(
            handshake(&cluster, &authority, Some(&client)),
            Some(true),
            "on {version}"
        );
    }
}

#[tokio::test]
async fn tokens_of_both_kinds_end_when_told() {
    for version in ["3.4", "3.7"] {
        for tokens in [Tokens::Simple(LIFE), Tokens::Jwt(LIFE)] {
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
                "{token} on {version}"
            );
            let started = Instant::now();
            let denied = loop {
                // Each look is a use, and makes a simple token live on: so it is left alone for longer than it lives.
                tokio::time::sleep(LIFE + LIFE / 2).await;
                if let Err(error) = cluster
                    .api_with_token(0, token, "/v3/kv/range", json!({"key": encode("k")}))
                    .await
                {
                    break error;
                }
                assert!(
                    started.elapsed() < Duration::from_secs(20),
                    "{tokens:?} never end on {version}"
                );
            };
            assert!(
                denied.contains("invalid auth token"),
                "{denied} on {version}"
            );
            // The testbed itself goes on.
            cluster
                .api(0, "/v3/kv/range", json!({"key": encode("k")}))
                .await
                .unwrap();
        }
    }
}
