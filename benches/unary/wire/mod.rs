//! Servers that are never the bottleneck: HTTP/2 frames by hand, one thread a connection, one write for all that was read.
//! There are three, as a cluster has, so that a client has something to balance.
//!
//! They do not decode what they are asked: a request without content is `Status` (how clients look whether a member lives),
//! everything else gets the answer of a `Range`, which a `Put` understands as well (its fields are a subset). A server that
//! decodes headers needs more CPU than the fastest client, and would make all clients look alike.

mod connection;

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Tells a program that it is to be the servers.
const CHILD: &str = "BENCH_WIRE_SERVER";

const SERVERS: usize = 3;

/// The servers' process; it ends when this is dropped.
pub struct WireServer {
    child: Child,
    /// The servers end when this closes, also when we are killed.
    _stdin: ChildStdin,
    endpoints: String,
}

impl WireServer {
    /// Becomes the servers if this process was started as such; never returns then.
    pub fn run_if_child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
        let listeners: Vec<_> = (0..SERVERS)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("loopback has a free port"))
            .collect();
        let url = |listener: &TcpListener| {
            let address = listener.local_addr().expect("a listener has an address");
            format!("http://{address}")
        };
        let urls: Vec<_> = listeners.iter().map(url).collect();
        println!("{}", urls.join(","));
        let accepting = listeners.into_iter().map(|listener| {
            std::thread::spawn(move || {
                for socket in listener.incoming().flatten() {
                    std::thread::spawn(move || connection::serve(socket));
                }
            })
        });
        for listener in accepting.collect::<Vec<_>>() {
            let _ = listener.join();
        }
        std::process::exit(0);
    }

    /// Starts this program again as the servers. `main` must have called [`WireServer::run_if_child`].
    pub fn start() -> Self {
        let program = std::env::current_exe().expect("a program knows where it is");
        let mut child = Command::new(program)
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program can be started again");
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        let mut endpoints = String::new();
        BufReader::new(stdout)
            .read_line(&mut endpoints)
            .expect("the servers print their addresses");
        Self {
            child,
            _stdin: stdin,
            endpoints: endpoints.trim().to_owned(),
        }
    }

    /// Their URLs, separated by commas.
    pub fn endpoints(&self) -> &str {
        &self.endpoints
    }
}

impl Drop for WireServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
