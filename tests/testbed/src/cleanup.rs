//! Nothing is left behind, even by a test process that is killed.
//!
//! `Drop` ends a cluster's members and removes its folder, also while a panic unwinds. Statics are never dropped and
//! SIGKILL runs nothing at all: so a small shell waits on a pipe, and when this process is gone it does both.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

/// A pid is only killed if its command line names the folder: pids are used again.
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

/// A temporary folder and the processes that work in it.
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
            .unwrap_or_else(|why| panic!("can't make {}: {why}", folder.display()));
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

    /// Has this process killed, should we be gone first.
    pub(crate) fn watch(&self, pid: u32) {
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
