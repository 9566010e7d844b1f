//! Command-line arguments: a mode, then `name=value` pairs.

use std::{str::FromStr, time::Duration};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As many calls as possible for a fixed time; prints a summary.
    Load,
    /// Calls until the end of stdin; prints each call.
    Stream,
    /// Receives the events of one watch; prints a summary.
    Watch,
    /// Receives the events of one watch until the end of stdin; prints each.
    Events,
}

#[derive(Clone, Copy)]
pub enum ClientKind {
    Ours,
    EtcdClient,
    Etcdrs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Get,
    Put,
}

/// Number of threads of the client and its callers together.
#[derive(Clone, Copy)]
pub enum Runtime {
    One,
    Two,
}

pub struct Arguments {
    pub mode: Mode,
    pub client: ClientKind,
    pub op: Op,
    pub runtime: Runtime,
    pub callers: usize,
    /// Number of events that a watch receives, in mode `watch`.
    pub events: u64,
    /// Whether the watch is hedged, in mode `events`. Only for actix-etcd.
    pub hedged: bool,
    pub endpoints: Vec<String>,
    pub warmup: Duration,
    pub duration: Duration,
    /// Timeout of a call. `None`: the default of the client.
    pub timeout: Option<Duration>,
    /// Pause between two calls of a caller, in mode `stream`.
    pub pause: Duration,
    /// Prefix of all keys and values.
    pub prefix: String,
}

impl Arguments {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mode = match words.next().as_deref() {
            Some("load") => Mode::Load,
            Some("stream") => Mode::Stream,
            Some("watch") => Mode::Watch,
            Some("events") => Mode::Events,
            _ => return Err("usage: peers load|stream|watch|events name=value …".to_owned()),
        };
        let mut arguments = Self {
            mode,
            client: ClientKind::Ours,
            op: Op::Get,
            runtime: Runtime::One,
            callers: 1,
            events: 1_000_000,
            hedged: false,
            endpoints: Vec::new(),
            warmup: Duration::from_millis(200),
            duration: Duration::from_secs(1),
            timeout: None,
            pause: Duration::ZERO,
            prefix: "bench".to_owned(),
        };
        for word in words {
            let (name, value) = word
                .split_once('=')
                .ok_or_else(|| format!("`{word}` is not name=value"))?;
            arguments.set(name, value)?;
        }
        if arguments.endpoints.is_empty() {
            return Err("endpoints= is missing".to_owned());
        }
        Ok(arguments)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match (name, value) {
            ("client", "ours") => self.client = ClientKind::Ours,
            ("client", "etcd-client") => self.client = ClientKind::EtcdClient,
            ("client", "etcdrs") => self.client = ClientKind::Etcdrs,
            ("op", "get") => self.op = Op::Get,
            ("op", "put") => self.op = Op::Put,
            ("runtime", "one") => self.runtime = Runtime::One,
            ("runtime", "two") => self.runtime = Runtime::Two,
            ("callers", count) => self.callers = number(name, count)?,
            ("hedged", "true") => self.hedged = true,
            ("hedged", "false") => self.hedged = false,
            ("events", count) => self.events = number(name, count)?,
            ("endpoints", list) => self.endpoints = list.split(',').map(str::to_owned).collect(),
            ("warmup", secs) => self.warmup = Duration::from_secs_f64(number(name, secs)?),
            ("secs", secs) => self.duration = Duration::from_secs_f64(number(name, secs)?),
            ("timeout", secs) => self.timeout = Some(Duration::from_secs_f64(number(name, secs)?)),
            ("pause", secs) => self.pause = Duration::from_secs_f64(number(name, secs)?),
            ("prefix", text) => text.clone_into(&mut self.prefix),
            _ => return Err(format!("unknown argument `{name}={value}`")),
        }
        Ok(())
    }
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{name}={text} is not a number"))
}
