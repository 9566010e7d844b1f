//! etcd's command-line tools, which must understand the data that this client writes.

use std::process::Command;

use crate::support::skipped_check::report_skipped;

/// Returns the output of `etcdctl`. Returns `None` and reports a skipped check where it is not installed.
pub fn etcdctl(args: &[&str]) -> Option<String> {
    run("etcdctl", args).or_else(|| {
        report_skipped("etcdctl is not installed (Debian: etcd-client)");
        None
    })
}

/// Like [`etcdctl`], for commands on files: newer releases have them in `etcdutl`.
pub fn etcdutl(args: &[&str]) -> Option<String> {
    run("etcdutl", args).or_else(|| etcdctl(args))
}

fn run(tool: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(tool)
        .env("ETCDCTL_API", "3")
        .args(args)
        .output()
        .ok()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stdout} {stderr}");
    Some(stdout)
}
