//! A name is looked up at every dial.

use std::{
    fs,
    net::TcpListener as Listener,
    path::{Path, PathBuf},
    process::Command,
};

use actix_etcd::Client;
use testbed::ScriptedServer;
use tokio::net::{TcpListener, TcpStream};

use crate::support::{process_isolation::child_test, skipped_check::report_skipped, wait::until};

const NAME: &str = "member.test";
/// Where the process inside finds its table of names.
const TABLE: &str = "TABLE_OF_NAMES";
/// Runs a command in namespaces of its own, where the table of names is a file of ours. No right is needed for that
/// where the system lets users make namespaces.
const INSIDE: [&str; 6] = [
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    r#"mount --bind "$TABLE_OF_NAMES" /etc/hosts && exec "$@""#,
];

struct Table(PathBuf);

impl Table {
    fn new() -> Self {
        let name = format!("actix-etcd-names-{}", std::process::id());
        let table = Self(std::env::temp_dir().join(name));
        lead_to(&table.0, "127.0.0.1");
        table
    }

    fn launcher(&self) -> Command {
        let mut command = Command::new("unshare");
        command.args(INSIDE).arg("sh").env(TABLE, &self.0);
        command
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes into the file that is there: a new one would not be seen inside.
fn lead_to(table: &Path, address: &str) {
    fs::write(table, format!("{address} {NAME}\n")).unwrap();
}

#[test]
fn a_name_that_leads_elsewhere_now_is_followed_at_the_next_dial() {
    if let Some(table) = std::env::var_os(TABLE) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(follow(Path::new(&table)));
    }
    let table = Table::new();
    let possible = table.launcher().arg("true").output();
    if !possible.is_ok_and(|tried| tried.status.success()) {
        return report_skipped("a name that leads elsewhere: no namespaces for users here");
    }
    let child = child_test!().launched_by(table.launcher()).run();
    child.assert_passed();
}

/// Carries what comes to this address to a server.
fn carry(listener: Listener, server: &ScriptedServer) {
    let target = server.address();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(target).await.unwrap();
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut client, &mut server).await },
            );
        }
    });
}

/// The same port on two addresses of loopback.
fn one_port_on_two_addresses() -> (u16, Listener, Listener) {
    loop {
        let here = Listener::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        if let Ok(there) = Listener::bind(("127.0.0.2", port)) {
            return (port, here, there);
        }
    }
}

async fn follow(table: &Path) {
    let (old, new) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let (port, here, there) = one_port_on_two_addresses();
    carry(here, &old);
    carry(there, &new);
    let etcd = Client::connect([format!("http://{NAME}:{port}")])
        .await
        .unwrap();
    assert_eq!((old.accepted(), new.accepted()), (1, 0));
    lead_to(table, "127.0.0.2");
    old.close_connections();
    until("the name is followed", || new.connections() == 1).await;
    etcd.wait_ready(std::time::Duration::from_secs(20))
        .await
        .unwrap();
    // The old address still answers: it was left because of the name alone.
    assert_eq!(old.accepted(), 1);
}
