//! A client process with one watch, and the events that it has reported.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{load_program::LoadProgram, steady_writer::Times};

#[derive(Default)]
struct Reported {
    ready: bool,
    arrivals: Times,
}

/// A running client process.
pub struct WatchProcess {
    child: Child,
    _stdin: ChildStdin,
    reported: Arc<Mutex<Reported>>,
}

impl WatchProcess {
    pub fn start(program: &LoadProgram, arguments: &[(&str, &str)]) -> Self {
        let mut child = program
            .command("events", arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the load program");
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let reported = Arc::<Mutex<Reported>>::default();
        let lines = reported.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let mut reported = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if line == "ready" {
                    reported.ready = true;
                }
                reported.arrivals.extend(parse(&line));
            }
        });
        Self {
            child,
            _stdin: stdin,
            reported,
        }
    }

    pub async fn wait_until_ready(&self) {
        let ready = async {
            while !self.reported().ready {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ready = tokio::time::timeout(Duration::from_secs(20), ready).await;
        ready.expect("the watch is opened in time");
    }

    /// Returns the times of all events so far.
    pub fn arrivals(&self) -> Times {
        self.reported().arrivals.clone()
    }

    fn reported(&self) -> std::sync::MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WatchProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse(line: &str) -> Option<(i64, u128)> {
    let (time, revision) = line.split_once(' ')?;
    Some((revision.parse().ok()?, time.parse().ok()?))
}
