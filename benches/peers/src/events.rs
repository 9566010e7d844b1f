//! Mode `events`: one watch in an otherwise idle client, for the lateness bench.
//!
//! The first line is `ready`, after the watch was opened. Then one line per revision: the time of its arrival
//! (microseconds since 1970, comparable between processes) and the revision. The program exits at the end of stdin.
//!
//! A watch of etcd-client ends with its stream. As its users do, the program then opens another one after the last
//! revision.

use std::{
    io::Write as _,
    time::{Duration, SystemTime},
};

use actix_etcd::WatchEvent;
use etcd_client::WatchOptions;
use tokio::io::AsyncReadExt as _;

use crate::{
    arguments::{Arguments, ClientKind},
    clients::{Connect as _, EtcdClient},
    one_thread,
};

/// Pause before a watch that ended is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(10);

pub fn run(arguments: &Arguments) -> Result<(), String> {
    one_thread().block_on(async {
        let receive = async {
            match arguments.client {
                ClientKind::Ours => receive_ours(arguments).await,
                ClientKind::EtcdClient => receive_etcd_client(arguments).await,
                ClientKind::OursInPlace | ClientKind::OursActor | ClientKind::Etcdrs => {
                    Err("mode `events` supports ours and etcd-client".to_owned())
                }
            }
        };
        let mut input = Vec::new();
        let mut stdin = tokio::io::stdin();
        tokio::select! {
            result = receive => result?,
            _ = stdin.read_to_end(&mut input) => {}
        }
        // Reading stdin blocks a thread of the runtime.
        std::process::exit(0)
    })
}

async fn receive_ours(arguments: &Arguments) -> Result<(), String> {
    let client = actix_etcd::Client::connect(&arguments.endpoints).await;
    let client = client.map_err(|error| error.to_string())?;
    let mut open = client.watch(arguments.prefix.clone()).prefix();
    if arguments.hedged {
        open = open.hedged();
    }
    let mut watch = open.await.map_err(|error| error.to_string())?;
    print_line("ready")?;
    while let Some(event) = watch.next().await {
        match event {
            WatchEvent::Events(events) => print_arrival(events.revision())?,
            WatchEvent::Ended(reason) => return Err(reason.to_string()),
            _ => {}
        }
    }
    Ok(())
}

async fn receive_etcd_client(arguments: &Arguments) -> Result<(), String> {
    let mut client = EtcdClient::connect(&arguments.endpoints).await?;
    let mut last = 0;
    loop {
        let mut options = WatchOptions::new().with_prefix();
        if last > 0 {
            options = options.with_start_revision(last + 1);
        }
        let opened = client
            .client()
            .watch(arguments.prefix.as_str(), Some(options));
        if let Ok(mut watch) = opened.await {
            if last == 0 {
                print_line("ready")?;
            }
            while let Ok(Some(message)) = watch.message().await {
                for event in message.events() {
                    let revision = event.kv().map_or(0, etcd_client::KeyValue::mod_revision);
                    if revision > last {
                        last = revision;
                        print_arrival(revision)?;
                    }
                }
            }
        }
        tokio::time::sleep(REOPEN_PAUSE).await;
    }
}

fn print_arrival(revision: i64) -> Result<(), String> {
    let elapsed = SystemTime::UNIX_EPOCH.elapsed();
    let micros = elapsed.map_err(|error| error.to_string())?.as_micros();
    print_line(&format!("{micros} {revision}"))
}

fn print_line(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(|error| error.to_string())
}
