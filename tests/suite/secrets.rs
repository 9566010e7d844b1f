//! Passwords, keys and tokens are in no line that is logged, at any level, by any crate.

use std::sync::{Arc, Mutex};

use actix::Actor;
use actix_etcd::{Client, ClientBuilder, Etcd, users};
use testbed::{Reply, ScriptedServer};

use crate::auth_scene::{AUTHENTICATE, PUT, token, token_refused, written};

/// Everything that is logged on this thread, spans and their fields among it.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs it with every log line captured, on one thread with the client's actors: the lines, which end in what it gave.
fn logged<F: Future<Output = String>>(story: impl FnOnce() -> F) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || writer.clone())
        .finish();
    let _capturing = tracing::subscriber::set_default(subscriber);
    let said = actix_rt::System::new().block_on(async { story().await });
    let lines = log.0.lock().unwrap().clone();
    String::from_utf8_lossy(&lines).into_owned() + &said
}

fn assert_silent(text: &str, secrets: &[&str]) {
    for secret in secrets {
        let line = text.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
    }
}

async fn here(builder: ClientBuilder) -> Client {
    builder.on_current_arbiter().connect().await.unwrap()
}

#[test]
fn logging_in_and_renewing_a_token_shows_neither_password_nor_token() {
    let text = logged(|| async {
        let server = ScriptedServer::start().await;
        server.on(AUTHENTICATE, |call| token(&format!("sesame-{}", call.nth)));
        server.on(PUT, |call| match call.metadata["token"].as_bytes() {
            b"sesame-0" => token_refused(),
            _ => written(),
        });
        let builder = Client::builder([server.endpoint()]).auth("ann", "swordfish");
        let shown = format!("{builder:?}");
        let etcd = here(builder).await;
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
    assert!(text.contains("logging in"), "nothing was captured");
    assert!(text.contains("h2::"), "the frames were not captured");
    assert!(text.contains("cannot be sent"), "{text}");
    assert_silent(&text, &["swordfish", "sesame"]);
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
    let text = logged(|| async {
        let server = ScriptedServer::start().await;
        let etcd = here(Client::builder([server.endpoint()])).await;
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
    assert!(text.contains("UserAdd"), "nothing was captured");
    assert_silent(&text, &["swordfish"]);
}

#[cfg(feature = "tls")]
#[test]
fn a_failure_of_tls_shows_no_key() {
    use actix_etcd::TlsOptions;
    use testbed::{Authority, Cluster, Tls};

    let (authority, stranger) = (Authority::new(), Authority::new());
    let foreign = stranger.client("ann");
    let own = authority.client("ann");
    let text = logged(|| async {
        let cluster = Cluster::builder()
            .tls(Tls::mutual(&authority))
            .start()
            .await;
        let mut shown = Vec::new();
        let trusting = || TlsOptions::new().ca_pem(authority.pem());
        let broken_key = own.key.replacen("END", "HALT", 1);
        for (certificate, key) in [
            (&foreign.certificate, &foreign.key),
            (&own.certificate, &foreign.key),
            (&own.certificate, &broken_key),
        ] {
            let options = trusting().client_certificate_pem(certificate, key);
            let builder = Client::builder(cluster.endpoints())
                .tls(options)
                .request_timeout(std::time::Duration::from_secs(1))
                .on_current_arbiter();
            shown.push(format!("{builder:?}"));
            let refused = builder.connect().await.unwrap_err();
            shown.push(format!("{refused} {refused:?}"));
        }
        let options = trusting().client_certificate_pem(&own.certificate, &own.key);
        let etcd = here(Client::builder(cluster.endpoints()).tls(options)).await;
        etcd.put("k", "v").await.unwrap();
        etcd.shutdown().await;
        shown.join(" ")
    });
    assert!(text.contains("client certificate"), "nothing was captured");
    for certificate in [&own, &foreign] {
        let lines: Vec<&str> = certificate
            .key
            .lines()
            .filter(|line| !line.contains('-'))
            .collect();
        assert!(lines.len() > 1);
        assert_silent(&text, &lines);
    }
}
