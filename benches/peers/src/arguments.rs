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
    /// Writes or reads a number of keys once; prints a summary.
    Bulk,
}

/// What mode `bulk` does with the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Writes them.
    Import,
    /// Reads them by name.
    GetMany,
    /// Reads their range as a stream.
    Export,
    /// Reads their range with one request.
    Range,
}

#[derive(Clone, Copy)]
pub enum ClientKind {
    /// actix-etcd on its own thread, as by default.
    Ours,
    /// actix-etcd on the thread of its callers, which is an arbiter.
    OursInPlace,
    /// actix-etcd on its own thread, called through the actor `Etcd` on the thread of its callers.
    OursActor,
    EtcdClient,
    Etcdrs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Get,
    Put,
}

/// Runtime of the application, which runs the callers: one thread, or two workers.
#[derive(Clone, Copy)]
pub enum Runtime {
    One,
    Two,
}

#[derive(Clone)]
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
    /// Task, number of keys, and size of their values, in mode `bulk`.
    pub task: Task,
    pub keys: usize,
    pub value: usize,
}

impl Arguments {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mode = match words.next().as_deref() {
            Some("load") => Mode::Load,
            Some("stream") => Mode::Stream,
            Some("watch") => Mode::Watch,
            Some("events") => Mode::Events,
            Some("bulk") => Mode::Bulk,
            _ => return Err("usage: peers load|stream|watch|events|bulk name=value …".to_owned()),
        };
        let mut arguments = Self {
            mode,
            client: ClientKind::Ours,
            op: Op::Get,
            runtime: Runtime::One,
            callers: 1,
            events: 1_000_000,
            task: Task::Import,
            keys: 1_000,
            value: 100,
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
            ("client", "ours-in-place") => self.client = ClientKind::OursInPlace,
            ("client", "ours-actor") => self.client = ClientKind::OursActor,
            ("client", "etcd-client") => self.client = ClientKind::EtcdClient,
            ("client", "etcdrs") => self.client = ClientKind::Etcdrs,
            ("op", "get") => self.op = Op::Get,
            ("op", "put") => self.op = Op::Put,
            ("task", "import") => self.task = Task::Import,
            ("task", "get_many") => self.task = Task::GetMany,
            ("task", "export") => self.task = Task::Export,
            ("task", "range") => self.task = Task::Range,
            ("keys", count) => self.keys = number(name, count)?,
            ("value", bytes) => self.value = number(name, bytes)?,
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
