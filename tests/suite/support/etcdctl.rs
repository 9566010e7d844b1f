//! etcd's own tool, which must understand what this client wrote.

use std::process::Command;

use crate::support::skipped::not_checked;

/// What `etcdctl` prints; `None`, said loudly, where it is not installed.
pub fn etcdctl(args: &[&str]) -> Option<String> {
    run("etcdctl", args).or_else(|| {
        not_checked("etcdctl is not installed (Debian: etcd-client)");
        None
    })
}

/// The same for work on files, which newer releases do with `etcdutl`.
pub fn etcdutl(args: &[&str]) -> Option<String> {
    run("etcdutl", args).or_else(|| etcdctl(args))
}

fn run(tool: &str, args: &[&str]) -> Option<String> {
    let run = Command::new(tool)
        .env("ETCDCTL_API", "3")
        .args(args)
        .output()
        .ok()?;
    let printed = String::from_utf8_lossy(&run.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{args:?}: {printed} {complaints}");
    Some(printed)
}
