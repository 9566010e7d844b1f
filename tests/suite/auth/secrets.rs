//! Passwords, keys and tokens are in no line that is logged, at any level, by any crate.

use std::{env, process::Command};

use actix::Actor;
use actix_etcd::{Client, Etcd, auth::users};
use testbed::{Reply, ScriptedServer};
use tracing_subscriber::{filter::LevelFilter, fmt::format::FmtSpan};

use crate::support::auth_cluster::{AUTHENTICATE, PUT, token, token_refused, written};

const CHILD: &str = "ACTIX_ETCD_SECRETS_CHILD";

/// All that a story left behind.
struct Left {
    /// What was logged on any thread by any crate, spans and their fields among it.
    log: String,
    /// What the story gave: things as they show themselves.
    said: String,
}

/// Tells a story in a process of its own, as what is logged is a matter of the whole process; there, `None`. The story
/// is given what the process was given.
fn logged<F>(test: &str, given: &str, story: impl FnOnce(String) -> F) -> Option<Left>
where
    F: Future<Output = String>,
{
    if let Ok(given) = env::var(CHILD) {
        // Records of the crate `log` come in, too.
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_span_events(FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
        println!("{}", actix_rt::System::new().block_on(story(given)));
        return None;
    }
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture", &format!("auth::secrets::{test}")])
        .env(CHILD, given)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let left = Left {
        log: text(child.stderr),
        said: text(child.stdout),
    };
    let passed = child.status.success() && left.said.contains("1 passed");
    assert!(passed, "{}", left.said);
    Some(left)
}

#[cfg(feature = "tls")]
fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

impl Left {
    fn assert_silent(&self, secrets: &[&str]) {
        assert_silent(&self.log, secrets);
        assert_silent(&self.said, secrets);
    }

    /// Otherwise it would be no wonder that there is no secret in it.
    fn assert_logged(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.log.contains(part), "{part} was not captured");
        }
    }
}

fn assert_silent(text: &str, secrets: &[&str]) {
    for secret in secrets {
        let line = text.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
    }
}

#[test]
fn logging_in_and_renewing_a_token_shows_neither_password_nor_token() {
    let test = "logging_in_and_renewing_a_token_shows_neither_password_nor_token";
    let left = logged(test, "", |_| async {
        let server = ScriptedServer::start().await;
        server.on(AUTHENTICATE, |call| token(&format!("sesame-{}", call.nth)));
        server.on(PUT, |call| match call.metadata["token"].as_bytes() {
            b"sesame-0" => token_refused(),
            _ => written(),
        });
        let builder = Client::builder([server.endpoint()]).credentials("ann", "swordfish");
        let shown = format!("{builder:?}");
        let etcd = builder.connect().await.unwrap();
        etcd.put("k", "v").await.unwrap();
        assert_eq!(server.count(AUTHENTICATE), 2);
        // What cannot be sent is not shown either.
        server.on(AUTHENTICATE, |_| token("sesame\n"));
        server.on(PUT, |_| token_refused());
        let refused = etcd.put("k", "v").await.unwrap_err();
        server.on(AUTHENTICATE, |_| {
            Reply::status(
                3,
                "etcdserver: authentication failed, invalid user ID or password",
            )
        });
        let wrong = etcd.put("k", "v").await.unwrap_err();
        let shown = format!("{shown} {etcd:?} {refused} {refused:?} {wrong} {wrong:?}");
        etcd.shutdown().await;
        shown
    });
    let Some(left) = left else { return };
    left.assert_logged(&[
        "logging in",
        "cannot log in",
        "h2::",
        "not allowed in a header",
    ]);
    left.assert_silent(&["swordfish", "sesame"]);
}

#[tokio::test]
async fn a_password_in_an_endpoint_is_refused_and_shown_nowhere() {
    let server = ScriptedServer::start().await;
    let mistaken = server.endpoint().replace("//", "//ann:swordfish@");
    let builder = Client::builder([&mistaken]);
    let shown = format!("{builder:?}");
    let refused = builder.connect_lazy().await.unwrap_err();
    let etcd = Client::connect([server.endpoint()]).await.unwrap();
    let changed = etcd.set_endpoints([&mistaken]).await.unwrap_err();
    let status = etcd.maintenance().status().at(&mistaken);
    let shown = format!("{shown} {refused:?} {changed} {status:?} {status:#?}");
    let added = etcd.cluster().add(["ann:swordfish@10.0.0.4:2380"]).await;
    let shown = format!(
        "{shown} {} {:?}",
        status.await.unwrap_err(),
        added.unwrap_err()
    );
    assert_silent(&shown, &["swordfish"]);
    assert!(shown.contains("<hidden>@"), "{shown}");
}

#[test]
fn administration_shows_no_password_not_even_as_a_message_to_the_actor() {
    let test = "administration_shows_no_password_not_even_as_a_message_to_the_actor";
    let left = logged(test, "", |_| async {
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
    let Some(left) = left else { return };
    left.assert_logged(&["UserAdd", "UserChangePassword"]);
    left.assert_silent(&["swordfish"]);
}

#[cfg(feature = "tls")]
mod keys {
    use std::{fs, path::PathBuf};

    use actix_etcd::{Client, TlsOptions};
    use testbed::{Authority, Cluster, Tls};

    /// Tries what is in a folder: keys that fit and keys that do not.
    async fn tried(folder: PathBuf) -> String {
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
    fn a_failure_of_tls_shows_no_key() {
        let (authority, stranger) = (Authority::new(), Authority::new());
        let (own, foreign) = (authority.client("ann"), stranger.client("ann"));
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
        let test = "keys::a_failure_of_tls_shows_no_key";
        let left = super::logged(test, &folder, |folder| tried(folder.into()));
        let Some(left) = left else { return };
        left.assert_logged(&["rustls::", "h2::", "client certificate"]);
        for certificate in [&own, &foreign] {
            let lines = certificate.key.lines();
            let lines: Vec<&str> = lines.filter(|line| !line.contains('-')).collect();
            assert!(lines.len() > 1);
            left.assert_silent(&lines);
        }
    }
}
