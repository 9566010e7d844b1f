//! Mode `stream`: calls without pause, each printed on its own line, for the failover bench.
//!
//! The first line is `ready`, after the client has connected. Then one line per call: start and end (microseconds
//! since 1970, comparable between processes), `ok` or the error kind, the outcome that the client reports, and the
//! key, which is unique. The program exits at the end of stdin.

use std::{
    io::Write as _,
    time::{Duration, SystemTime},
};

use tokio::{io::AsyncReadExt as _, sync::mpsc};

use crate::{
    arguments::{Arguments, Op},
    clients::{Call, CallError, Connect},
};

/// Minimum pause after a failed call, so that a client that fails immediately does not flood the output.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(1);

pub async fn run<C: Connect>(client: C, arguments: &Arguments) -> Result<(), String> {
    let (lines, mut printed_lines) = mpsc::unbounded_channel::<String>();
    for number in 0..arguments.callers {
        let caller = Caller {
            client: client.clone(),
            op: arguments.op,
            timeout: arguments.timeout,
            pause: arguments.pause,
            prefix: format!("{}/{number}", arguments.prefix),
            lines: lines.clone(),
        };
        tokio::spawn(caller.run());
    }
    let printer = std::thread::spawn(move || {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "ready");
        let _ = out.flush();
        while let Some(line) = printed_lines.blocking_recv() {
            if out.write_all(line.as_bytes()).is_err() {
                return;
            }
        }
        let _ = out.flush();
    });
    let mut input = Vec::new();
    let _ = tokio::io::stdin().read_to_end(&mut input).await;
    drop(lines);
    // The callers are still running, so the printer gets limited time to print the queued lines.
    let printer_done = tokio::time::timeout(
        Duration::from_millis(200),
        tokio::task::spawn_blocking(move || printer.join()),
    );
    let _ = printer_done.await;
    std::process::exit(0);
}

struct Caller<C> {
    client: C,
    op: Op,
    timeout: Option<Duration>,
    pause: Duration,
    prefix: String,
    lines: mpsc::UnboundedSender<String>,
}

impl<C: Call> Caller<C> {
    async fn run(mut self) {
        for count in 0u64.. {
            let key = format!("{}/{count}", self.prefix);
            let sent = now_micros();
            let result = self.call(&key).await;
            let (kind, outcome) = match &result {
                Ok(()) => ("ok", "-"),
                Err(error) => (error.kind.as_str(), error.outcome),
            };
            let line = format!("{sent} {} {kind} {outcome} {key}\n", now_micros());
            if self.lines.send(line).is_err() {
                return;
            }
            let pause = if result.is_err() {
                self.pause.max(PAUSE_AFTER_ERROR)
            } else {
                self.pause
            };
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    async fn call(&mut self, key: &str) -> Result<(), CallError> {
        let call = async {
            match self.op {
                Op::Get => self.client.get(key).await,
                Op::Put => self.client.put(key, key).await,
            }
        };
        let Some(timeout) = self.timeout else {
            return call.await;
        };
        tokio::time::timeout(timeout, call)
            .await
            .unwrap_or_else(|_| {
                Err(CallError {
                    kind: "Timeout".to_owned(),
                    outcome: "-",
                })
            })
    }
}

fn now_micros() -> u128 {
    let elapsed = SystemTime::UNIX_EPOCH.elapsed();
    elapsed.expect("the clock is after 1970").as_micros()
}
