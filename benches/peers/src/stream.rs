//! Calls without pause, told one by one, for who makes members fail meanwhile.
//!
//! A line a call: when it was sent and when it ended (microseconds since 1970: a clock that all processes
//! share), `ok` or the kind of error, the outcome the client claims, and the key, which no two calls share. A first line
//! `ready` says that the client is connected; everything ends when the input does.

use std::{
    io::Write as _,
    time::{Duration, SystemTime},
};

use tokio::{io::AsyncReadExt as _, sync::mpsc};

use crate::{
    arguments::{Arguments, Op},
    clients::{Call, Connect, Failed},
};

/// A client that fails at once must not fill the disk with the news; a real caller would not spin either.
const AFTER_ERROR: Duration = Duration::from_millis(1);

pub async fn run<C: Connect>(client: C, arguments: &Arguments) -> Result<(), String> {
    let (lines, mut told) = mpsc::unbounded_channel::<String>();
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
        while let Some(line) = told.blocking_recv() {
            if out.write_all(line.as_bytes()).is_err() {
                return;
            }
        }
        let _ = out.flush();
    });
    let mut nothing = Vec::new();
    let _ = tokio::io::stdin().read_to_end(&mut nothing).await;
    drop(lines);
    // Callers end with the process; what they said is printed first.
    let printed = tokio::time::timeout(
        Duration::from_millis(200),
        tokio::task::spawn_blocking(move || printer.join()),
    );
    let _ = printed.await;
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
            let sent = micros();
            let ended = self.call(&key).await;
            let (kind, outcome) = match &ended {
                Ok(()) => ("ok", "-"),
                Err(failed) => (failed.kind.as_str(), failed.outcome),
            };
            let line = format!("{sent} {} {kind} {outcome} {key}\n", micros());
            if self.lines.send(line).is_err() {
                return;
            }
            let pause = if ended.is_err() {
                self.pause.max(AFTER_ERROR)
            } else {
                self.pause
            };
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    async fn call(&mut self, key: &str) -> Result<(), Failed> {
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
                Err(Failed {
                    kind: "Timeout".to_owned(),
                    outcome: "-",
                })
            })
    }
}

fn micros() -> u128 {
    let since = SystemTime::UNIX_EPOCH.elapsed();
    since.expect("1970 is over").as_micros()
}
