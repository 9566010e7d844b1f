//! A server that is never the bottleneck: HTTP/2 frames by hand, one thread a connection, one write for all that was read.
//!
//! It does not decode what it is asked: a request without content is `Status` (how clients look whether a member lives),
//! everything else gets the answer of a `Range`, which a `Put` understands as well (its fields are a subset). A server that
//! decodes headers needs more CPU than the fastest client, and would make all clients look alike.

mod connection;

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Tells a program that it is to be the server.
const CHILD: &str = "BENCH_WIRE_SERVER";

/// The server's process; it ends when this is dropped.
pub struct WireServer {
    child: Child,
    /// The server ends when this closes, also when we are killed.
    _stdin: ChildStdin,
    endpoint: String,
}

impl WireServer {
    /// Becomes the server if this process was started as one; never returns then.
    pub fn run_if_child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        println!("http://{address}");
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || connection::serve(socket));
        }
        std::process::exit(0);
    }

    /// Starts this program again as the server. `main` must have called [`WireServer::run_if_child`].
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
        let mut endpoint = String::new();
        BufReader::new(stdout)
            .read_line(&mut endpoint)
            .expect("the server prints its address");
        Self {
            child,
            _stdin: stdin,
            endpoint: endpoint.trim().to_owned(),
        }
    }

    /// Its URL.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl Drop for WireServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
