//! A process of the etcd binary, a member or a gRPC proxy: starts, kills, freezes and restarts it.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::cleanup::CleanupGuard;
use crate::ports;

/// How long the process may take to listen, or to end after SIGTERM.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(30);

/// A process that can be started more than once, and its log file.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    log_file: PathBuf,
    cleanup: Arc<CleanupGuard>,
    child: Mutex<Option<Child>>,
}

impl ServerProcess {
    pub(crate) fn new(log_file: PathBuf, cleanup: Arc<CleanupGuard>) -> Self {
        Self {
            log_file,
            cleanup,
            child: Mutex::default(),
        }
    }

    /// Starts the command without environment variables. Returns the process id. The command line must contain the
    /// folder of the cleanup guard, which kills no other process.
    pub(crate) fn spawn(&self, mut command: Command) -> u32 {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log_file)
            .expect("open the log file");
        let errors = log.try_clone().expect("duplicate the log file handle");
        command
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| {
            panic!(
                "cannot start {}: {error}",
                command.get_program().to_string_lossy()
            )
        });
        let pid = child.id();
        self.cleanup.register(pid);
        *self.child() = Some(child);
        pid
    }

    /// Waits until the process listens on this port. Returns `false` if it ended because another process took one of
    /// its ports.
    pub(crate) async fn wait_until_listening(&self, port: u16) -> bool {
        let started = Instant::now();
        while TcpStream::connect(ports::loopback(port)).await.is_err() {
            let log = || self.last_log_lines();
            if !self.is_running() {
                let log = log();
                assert!(
                    log.contains("address already in use"),
                    "etcd did not start:\n{log}"
                );
                return false;
            }
            assert!(
                started.elapsed() < PROCESS_TIMEOUT,
                "etcd did not listen in time:\n{}",
                log()
            );
            sleep(Duration::from_millis(2)).await;
        }
        true
    }

    /// Returns the process id, if the process was started and not killed.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Returns whether the process exists, frozen or not.
    pub(crate) fn is_running(&self) -> bool {
        let mut child = self.child();
        child
            .as_mut()
            .is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_none()))
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub(crate) async fn terminate(&self) {
        self.thaw();
        self.signal(Signal::TERM);
        let started = Instant::now();
        while self.is_running() {
            assert!(
                started.elapsed() < PROCESS_TIMEOUT,
                "etcd did not end after SIGTERM:\n{}",
                self.last_log_lines()
            );
            sleep(Duration::from_millis(5)).await;
        }
        self.kill();
    }

    /// Sends SIGSTOP and waits until all threads have stopped.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        // The signal stops one thread after the other, and a running thread could still respond to a request.
        let limit = std::time::Instant::now() + Duration::from_secs(1);
        while self.pid().is_some_and(|pid| !is_stopped(pid)) && std::time::Instant::now() < limit {
            std::thread::yield_now();
        }
    }

    /// Sends SIGCONT.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Counts the log lines that contain all of `parts`.
    pub(crate) fn count_log_lines(&self, parts: &[&str]) -> usize {
        let log = fs::read(&self.log_file).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let matches = |line: &&str| parts.iter().all(|part| line.contains(part));
        log.lines().filter(matches).count()
    }

    /// Returns the last log lines, for panic messages.
    pub(crate) fn last_log_lines(&self) -> String {
        let log = fs::read(&self.log_file).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &*self.child() {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether all threads of a process are stopped, or the process has ended.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok())
        // The state follows the name, which is in parentheses and may contain any character.
        .filter_map(|stat| {
            stat.rsplit_once(") ")
                .map(|(_, rest)| rest.starts_with('T'))
        })
        .all(|stopped| stopped)
}
