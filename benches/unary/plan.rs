//! The workloads and clients to measure, from environment variables.

use std::{env, fmt};

/// One workload, which all clients run one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub server: String,
    pub op: String,
    pub callers: usize,
    /// Threads of the application: `one` or `two`.
    pub threads: String,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, server, callers) = (&self.op, &self.server, self.callers);
        let plural = if callers > 1 { "s" } else { "" };
        let application = match self.threads.as_str() {
            "one" => "one thread",
            _ => "two workers",
        };
        write!(
            f,
            "{op}, {server}, {callers} caller{plural}, application on {application}"
        )
    }
}

/// What to measure, and for how long.
pub struct Plan {
    pub rounds: usize,
    pub secs: String,
    pub workloads: Vec<Workload>,
    pub clients: Vec<String>,
    /// The Go client, if `GO_CLIENT` is set.
    pub go_client: Option<String>,
}

impl Plan {
    pub fn from_env() -> Self {
        let list = |name: &str, default: &str| -> Vec<String> {
            let text = env::var(name).unwrap_or_else(|_| default.to_owned());
            text.split(',').map(|word| word.trim().to_owned()).collect()
        };
        let mut workloads = Vec::new();
        for server in list("UNARY_SERVERS", "constant,etcd") {
            for op in list("UNARY_OPS", "get,put") {
                for callers in list("UNARY_CALLERS", "1,2,8,64,512") {
                    for threads in list("UNARY_THREADS", "one,two") {
                        workloads.push(Workload {
                            server: server.clone(),
                            op: op.clone(),
                            callers: callers.parse().expect("UNARY_CALLERS is a list of numbers"),
                            threads,
                        });
                    }
                }
            }
        }
        let go_client = env::var("GO_CLIENT").ok().filter(|path| !path.is_empty());
        let mut clients = list(
            "UNARY_CLIENTS",
            "ours,ours-in-place,ours-actor,etcd-client,etcdrs,go",
        );
        if go_client.is_none() {
            clients.retain(|client| client != "go");
        }
        let rounds = list("UNARY_ROUNDS", "3").remove(0);
        Self {
            rounds: rounds.parse().expect("UNARY_ROUNDS is a number"),
            secs: list("UNARY_SECS", "0.25").remove(0),
            workloads,
            clients,
            go_client,
        }
    }

    /// Returns the clients that run a workload: an arbiter has one thread, and the Go client is measured on two.
    pub fn clients_for(&self, workload: &Workload) -> Vec<String> {
        let one_thread = workload.threads == "one";
        let runs = |client: &&String| match client.as_str() {
            "ours-in-place" | "ours-actor" => one_thread,
            "go" => !one_thread,
            _ => true,
        };
        self.clients.iter().filter(runs).cloned().collect()
    }
}
