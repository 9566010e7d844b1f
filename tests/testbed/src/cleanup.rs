//! Kills the members and removes the data folder of a cluster, even if the test process is killed.
//!
//! `Drop` does both, also while a panic unwinds. But statics are never dropped, and SIGKILL runs no destructor. So a
//! shell process reads from a pipe; when the pipe closes, it does both.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

/// Kills a pid only if its command line contains the folder, because the kernel reuses pids.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
folder=$1
while read -r pid; do pids="$pids $pid"; done
for pid in $pids; do
    grep -qF -- "$folder" "/proc/$pid/cmdline" 2>/dev/null && kill -9 "$pid"
done
for wait in 1 2 3 4 5; do
    rm -rf -- "$folder" && [ ! -e "$folder" ] && exit
    sleep 0.1
done
"#;

/// A temporary folder and the shell that cleans up after this process.
#[derive(Debug)]
pub(crate) struct CleanupGuard {
    folder: PathBuf,
    shell: Mutex<Option<(Child, ChildStdin)>>,
}

impl CleanupGuard {
    pub(crate) fn new() -> Self {
        let name = format!(
            "actix-etcd-{}-{:016x}",
            std::process::id(),
            fastrand::u64(..)
        );
        let folder = env::temp_dir().join(name);
        fs::create_dir(&folder)
            .unwrap_or_else(|error| panic!("cannot create {}: {error}", folder.display()));
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .spawn();
        let shell = shell
            .ok()
            .and_then(|mut child| child.stdin.take().map(|pipe| (child, pipe)));
        Self {
            folder,
            shell: Mutex::new(shell),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Registers a process to be killed when this process ends.
    pub(crate) fn register(&self, pid: u32) {
        if let Some((_, pipe)) = &mut *self.shell.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(pipe, "{pid}");
        }
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        let shell = self
            .shell
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((mut child, pipe)) = shell {
            drop(pipe);
            let _ = child.wait();
        }
    }
}
