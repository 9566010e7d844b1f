//! Host names are resolved again at every connection attempt.

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

const HOST_NAME: &str = "member.test";
/// Environment variable of the child process: the path of its hosts file.
const HOSTS_FILE: &str = "ACTIX_ETCD_HOSTS_FILE";
/// Arguments of `unshare` that run a command in new namespaces, with our file mounted as `/etc/hosts`. No privileges
/// are needed where the system allows user namespaces.
const UNSHARE_ARGS: [&str; 6] = [
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    r#"mount --bind "$ACTIX_ETCD_HOSTS_FILE" /etc/hosts && exec "$@""#,
];

struct HostsFile(PathBuf);

impl HostsFile {
    fn new() -> Self {
        let name = format!("actix-etcd-hosts-{}", std::process::id());
        let hosts_file = Self(std::env::temp_dir().join(name));
        set_address(&hosts_file.0, "127.0.0.1");
        hosts_file
    }

    fn launcher(&self) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(UNSHARE_ARGS)
            .arg("sh")
            .env(HOSTS_FILE, &self.0);
        command
    }
}

impl Drop for HostsFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Overwrites the file in place: a new file would not be visible through the bind mount.
fn set_address(hosts_file: &Path, address: &str) {
    fs::write(hosts_file, format!("{address} {HOST_NAME}\n")).unwrap();
}

#[test]
fn changed_address_is_used_on_reconnect() {
    if let Some(hosts_file) = std::env::var_os(HOSTS_FILE) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(check_reconnect(Path::new(&hosts_file)));
    }
    let hosts_file = HostsFile::new();
    let possible = hosts_file.launcher().arg("true").output();
    if !possible.is_ok_and(|tried| tried.status.success()) {
        return report_skipped("change of an address: this machine allows no user namespaces");
    }
    let child = child_test!().launched_by(hosts_file.launcher()).run();
    child.assert_passed();
}

/// Forwards all connections of the listener to a server.
fn forward(listener: Listener, server: &ScriptedServer) {
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

/// Binds the same port on two loopback addresses.
fn bind_two_addresses() -> (u16, Listener, Listener) {
    loop {
        let first = Listener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        if let Ok(second) = Listener::bind(("127.0.0.2", port)) {
            return (port, first, second);
        }
    }
}

async fn check_reconnect(hosts_file: &Path) {
    let (old, new) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let (port, first, second) = bind_two_addresses();
    forward(first, &old);
    forward(second, &new);
    let etcd = Client::connect([format!("http://{HOST_NAME}:{port}")])
        .await
        .unwrap();
    assert_eq!((old.accepted(), new.accepted()), (1, 0));
    set_address(hosts_file, "127.0.0.2");
    old.close_connections();
    until("the new address is connected", || new.connections() == 1).await;
    etcd.wait_ready(std::time::Duration::from_secs(20))
        .await
        .unwrap();
    // The old address still accepts connections: the client left it only because of the name.
    assert_eq!(old.accepted(), 1);
}
