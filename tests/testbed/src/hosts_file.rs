//! Host names of a test: a file that a child process sees as `/etc/hosts`.
//!
//! The child runs in its own user and mount namespaces, so no privileges are needed where the system allows user
//! namespaces.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Environment variable of the child process: the path of its hosts file.
const VARIABLE: &str = "TESTBED_HOSTS_FILE";
/// Arguments of `unshare` that run a command with our file mounted as `/etc/hosts`.
const UNSHARE_ARGS: [&str; 6] = [
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    r#"mount --bind "$TESTBED_HOSTS_FILE" /etc/hosts && exec "$@""#,
];

/// A hosts file. The process that created it removes it when it drops this value.
#[derive(Debug)]
pub struct HostsFile {
    path: PathBuf,
    created_here: bool,
}

impl HostsFile {
    /// Creates a file with the name `localhost` alone.
    pub fn new() -> Self {
        let name = format!(
            "actix-etcd-hosts-{}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        let hosts = Self {
            path: env::temp_dir().join(name),
            created_here: true,
        };
        hosts.write("");
        hosts
    }

    /// Returns the hosts file of this process, if a [launcher](HostsFile::launcher) started it.
    pub fn of_this_process() -> Option<Self> {
        let path = PathBuf::from(env::var_os(VARIABLE)?);
        Some(Self {
            path,
            created_here: false,
        })
    }

    /// Makes a host name resolve to these addresses, in this order, with immediate effect. Replaces all other names.
    pub fn set(&self, host: &str, addresses: &[IpAddr]) {
        let line = |address: &IpAddr| format!("{address} {host}\n");
        self.write(&addresses.iter().map(line).collect::<String>());
    }

    /// Returns a command that runs the program and arguments appended to it with this hosts file.
    pub fn launcher(&self) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(UNSHARE_ARGS)
            .arg("sh")
            .env(VARIABLE, &self.path);
        command
    }

    /// Returns whether this system can run programs with a hosts file.
    pub fn is_supported() -> bool {
        let tried = Self::new().launcher().arg("true").output();
        tried.is_ok_and(|tried| tried.status.success())
    }

    /// Overwrites the file in place: a new file would not be visible through the bind mount.
    fn write(&self, lines: &str) {
        fs::write(&self.path, format!("127.0.0.1 localhost\n{lines}"))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", self.path.display()));
    }
}

impl Default for HostsFile {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for HostsFile {
    fn drop(&mut self) {
        if self.created_here {
            let _ = fs::remove_file(&self.path);
        }
    }
}
