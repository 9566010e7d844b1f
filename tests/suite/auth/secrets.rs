//! Passwords, keys and tokens appear in no log line, at any level, of any crate.

use std::env;

use actix::Actor;
use actix_etcd::{Client, Etcd, auth::users};
use testbed::{Reply, ScriptedServer};
use tracing_subscriber::{filter::LevelFilter, fmt::format::FmtSpan};

use crate::support::{
    auth_cluster::{AUTHENTICATE, invalid_token_reply, login_reply},
    process_isolation::{ChildTest, child_test},
    scripted_put::{PUT, put_reply},
};

const CHILD: &str = "ACTIX_ETCD_SECRETS_CHILD";

/// Everything that a child process printed.
struct CapturedOutput {
    /// Log lines of all threads and crates, including spans and their fields.
    log: String,
    /// Texts returned by the scenario: debug and display output.
    shown: String,
}

/// Runs `scenario` with `argument` in a child process, because a process has only one logger. Returns `None` in the
/// child process.
fn run_in_child<F>(
    test: ChildTest,
    argument: &str,
    scenario: impl FnOnce(String) -> F,
) -> Option<CapturedOutput>
where
    F: Future<Output = String>,
{
    if let Ok(argument) = env::var(CHILD) {
        // Captures records of the `log` crate as well.
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_span_events(FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
        println!("{}", actix_rt::System::new().block_on(scenario(argument)));
        return None;
    }
    let child = test.env(CHILD, argument).run();
    assert!(child.passed, "{}", child.stdout);
    Some(CapturedOutput {
        log: child.stderr,
        shown: child.stdout,
    })
}

#[cfg(feature = "tls")]
fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

impl CapturedOutput {
    fn assert_hidden(&self, secrets: &[&str]) {
        assert_hidden(&self.log, secrets);
        assert_hidden(&self.shown, secrets);
    }

    /// Asserts that the log was captured: an empty log would contain no secret either.
    fn assert_logged(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.log.contains(part), "{part} was not logged");
        }
    }
}

fn assert_hidden(text: &str, secrets: &[&str]) {
    for secret in secrets {
        let line = text.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
    }
}

#[test]
fn login_and_renewal_show_no_secret() {
    let output = run_in_child(child_test!(), "", |_| async {
        let server = ScriptedServer::start().await;
        server.on(AUTHENTICATE, |call| {
            login_reply(&format!("sesame-{}", call.nth))
        });
        server.on(PUT, |call| match call.metadata["token"].as_bytes() {
            b"sesame-0" => invalid_token_reply(),
            _ => put_reply(),
        });
        let builder = Client::builder([server.endpoint()]).credentials("ann", "swordfish");
        let shown = format!("{builder:?}");
        let etcd = builder.connect().await.unwrap();
        etcd.put("k", "v").await.unwrap();
        assert_eq!(server.count(AUTHENTICATE), 2);
        // A token that cannot be sent as metadata is not shown either.
        server.on(AUTHENTICATE, |_| login_reply("sesame\n"));
        server.on(PUT, |_| invalid_token_reply());
        let refused = etcd.put("k", "v").await.unwrap_err();
        server.on(AUTHENTICATE, |_| {
            Reply::status(
                3,
                "etcdserver: authentication failed, invalid user ID or password",
            )
        });
        let wrong_password = etcd.put("k", "v").await.unwrap_err();
        let shown =
            format!("{shown} {etcd:?} {refused} {refused:?} {wrong_password} {wrong_password:?}");
        etcd.shutdown().await;
        shown
    });
    let Some(output) = output else { return };
    output.assert_logged(&[
        "logging in",
        "cannot log in",
        "h2::",
        "not allowed in a header",
    ]);
    output.assert_hidden(&["swordfish", "sesame"]);
}

#[tokio::test]
async fn password_in_endpoint_is_refused_and_hidden() {
    let server = ScriptedServer::start().await;
    let endpoint_with_password = server.endpoint().replace("//", "//ann:swordfish@");
    let builder = Client::builder([&endpoint_with_password]);
    let shown = format!("{builder:?}");
    let refused = builder.connect_lazy().await.unwrap_err();
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let changed = etcd
        .set_endpoints([&endpoint_with_password])
        .await
        .unwrap_err();
    let status = etcd.maintenance().status().at(&endpoint_with_password);
    let shown = format!("{shown} {refused:?} {changed} {status:?} {status:#?}");
    let added = etcd.cluster().add(["ann:swordfish@10.0.0.4:2380"]).await;
    let shown = format!(
        "{shown} {} {:?}",
        status.await.unwrap_err(),
        added.unwrap_err()
    );
    assert_hidden(&shown, &["swordfish"]);
    assert!(shown.contains("<hidden>@"), "{shown}");
}

#[test]
fn user_administration_shows_no_password() {
    let output = run_in_child(child_test!(), "", |_| async {
        let server = ScriptedServer::start().await;
        let etcd = Client::connect([server.endpoint()]).await.unwrap();
        let actor = Etcd::new(etcd.clone()).start();
        let mut shown = Vec::new();
        for request in [
            users::requests().add("bob", "swordfish"),
            users::requests().change_password("bob", "swordfish"),
        ] {
            shown.push(format!("{request:?}"));
            let refused = actor.send(request).await.unwrap().unwrap_err();
            shown.push(format!("{refused} {refused:?}"));
        }
        let refused = etcd.users().add("bob", "swordfish").await.unwrap_err();
        shown.push(format!("{refused} {refused:?}"));
        etcd.shutdown().await;
        shown.join(" ")
    });
    let Some(output) = output else { return };
    output.assert_logged(&["UserAdd", "UserChangePassword"]);
    output.assert_hidden(&["swordfish"]);
}

#[cfg(feature = "tls")]
mod keys {
    use std::{fs, path::PathBuf};

    use actix_etcd::{Client, TlsOptions};
    use testbed::{Authority, Cluster, Tls};

    use crate::support::process_isolation::child_test;

    /// Connects with the matching and the wrong keys of a folder. Returns all texts that were shown.
    async fn connect_with_keys(folder: PathBuf) -> String {
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let builder = |certificate: &str, key: &str| {
            let options = TlsOptions::new()
                .ca_pem(read("ca.crt"))
                .client_certificate_pem(read(certificate), key);
            Client::builder([read("endpoint")]).tls(options)
        };
        let mut shown = Vec::new();
        let broken_key = read("own.key").replacen("END", "HALT", 1);
        for (certificate, key) in [
            ("foreign.crt", read("foreign.key")),
            ("own.crt", read("foreign.key")),
            ("own.crt", broken_key),
        ] {
            let builder = builder(certificate, &key);
            shown.push(format!("{builder:?}"));
            let refused = builder.connect().await.unwrap_err();
            shown.push(format!("{refused} {refused:?}"));
        }
        let etcd = builder("own.crt", &read("own.key")).connect().await;
        let etcd = etcd.unwrap();
        etcd.put("k", "v").await.unwrap();
        etcd.shutdown().await;
        shown.join(" ")
    }

    #[test]
    fn tls_failure_shows_no_key() {
        let (authority, other_authority) = (Authority::new(), Authority::new());
        let (own, foreign) = (authority.client("ann"), other_authority.client("ann"));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let builder = Cluster::builder().tls(Tls::mutual(&authority));
        let cluster = (!super::is_child()).then(|| runtime.block_on(builder.start()));
        let mut folder = String::new();
        if let Some(cluster) = &cluster {
            folder = cluster.folder().to_str().unwrap().to_owned();
            for (name, text) in [
                ("endpoint", cluster.endpoints()[0].as_str()),
                ("ca.crt", authority.pem()),
                ("own.crt", &own.certificate),
                ("own.key", &own.key),
                ("foreign.crt", &foreign.certificate),
                ("foreign.key", &foreign.key),
            ] {
                fs::write(cluster.folder().join(name), text).unwrap();
            }
        }
        let output = super::run_in_child(child_test!(), &folder, |folder| {
            connect_with_keys(folder.into())
        });
        let Some(output) = output else { return };
        output.assert_logged(&["rustls::", "h2::", "client certificate"]);
        for certificate in [&own, &foreign] {
            let lines = certificate.key.lines();
            let lines: Vec<&str> = lines.filter(|line| !line.contains('-')).collect();
            assert!(lines.len() > 1);
            output.assert_hidden(&lines);
        }
    }
}
