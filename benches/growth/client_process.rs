//! A process that runs only a client under one load, so that its memory and its CPU time are those of the client.
//!
//! The bench runs itself again as this process. It prints its figures as one line of JSON when the load is done.

use actix_etcd::{Client, ClientBuilder};
use serde_json::Value;
use testbed::{ChildProgram, exit_at_end_of_stdin};

use crate::{call_load, lease_load, watch_load};

const CHILD: &str = "GROWTH_BENCH_CLIENT";

/// What the client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Idle clients with a connection to each endpoint.
    Clients,
    /// Callers that send gets, each one after the other.
    Callers,
    /// Calls that never get a response.
    CallsInFlight,
    /// Leases that are kept alive.
    Leases,
    /// Watches in a list.
    Watches,
    /// Watches that are opened and read by one task each, some hundreds at a time.
    WatchTasks,
    /// Watches that are opened and read by one task each, all tasks spawned at once.
    WatchTasksAtOnce,
    /// Watches that are delivered to an actor.
    WatchDeliveries,
}

impl Load {
    const ALL: [Self; 8] = [
        Self::Clients,
        Self::Callers,
        Self::CallsInFlight,
        Self::Leases,
        Self::Watches,
        Self::WatchTasks,
        Self::WatchTasksAtOnce,
        Self::WatchDeliveries,
    ];

    /// Starts a client process with `count` units of this load, and returns its figures.
    pub fn measure(self, count: usize, endpoints: &[String]) -> Figures {
        let task = format!("{self:?} {count} {}", endpoints.join(" "));
        let line = ChildProgram::start(CHILD, &task).next_line();
        let figures = serde_json::from_str(&line);
        Figures(figures.unwrap_or_else(|_| panic!("{self:?} of {count} failed: {line}")))
    }
}

/// Figures of a client process by name.
pub struct Figures(Value);

impl Figures {
    pub fn get(&self, name: &str) -> f64 {
        let figure = self.0[name].as_f64();
        figure.unwrap_or_else(|| panic!("no figure {name} in {}", self.0))
    }
}

/// Runs the client if this process was started as one, and does not return in that case.
pub fn run_if_child() {
    let Ok(task) = std::env::var(CHILD) else {
        return;
    };
    exit_at_end_of_stdin();
    let mut words = task.split(' ');
    let name = words.next().unwrap_or_default();
    let load = Load::ALL
        .into_iter()
        .find(|load| format!("{load:?}") == name)
        .expect("the name of a load");
    let count = words.next().and_then(|count| count.parse().ok());
    let count = count.expect("a number of units");
    let endpoints: Vec<&str> = words.collect();
    // A thread with an arbiter, for actors that receive events.
    let figures = actix::System::new().block_on(run(load, count, &endpoints));
    println!("{figures}");
    std::process::exit(0);
}

async fn run(load: Load, count: usize, endpoints: &[&str]) -> Value {
    match load {
        Load::Clients => call_load::hold_clients(count, endpoints).await,
        Load::Callers => call_load::call(count, endpoints).await,
        Load::CallsInFlight => call_load::hold_calls(count, endpoints).await,
        Load::Leases => lease_load::keep(count, endpoints).await,
        Load::Watches | Load::WatchTasks | Load::WatchTasksAtOnce | Load::WatchDeliveries => {
            watch_load::hold(load, count, endpoints).await
        }
    }
}

pub fn builder(endpoints: &[&str]) -> ClientBuilder {
    Client::builder(endpoints.iter().copied())
}
