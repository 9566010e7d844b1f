//! Three servers with constant responses, which are never the bottleneck: HTTP/2 frames written by hand, one thread per
//! connection, one write per read. There are three, as in a cluster, so that clients balance their calls.
//!
//! The servers do not decode requests. An empty request gets a `Status` response (the health check of clients), every
//! other one a `Range` response, which clients also accept for `Put` (its fields are a subset). Decoding headers would
//! take more CPU than the fastest client, and hide the differences between the clients.

mod connection;

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Environment variable that makes the program run as the servers.
const CHILD: &str = "BENCH_WIRE_SERVER";

const SERVERS: usize = 3;

/// The process of the servers; killed when this is dropped.
pub struct ConstantServers {
    child: Child,
    /// The servers exit when this pipe closes, even if this process is killed.
    _stdin: ChildStdin,
    endpoints: String,
}

impl ConstantServers {
    /// Runs the servers if this process was started for that, and does not return in that case.
    pub fn run_if_child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
        let listeners: Vec<_> = (0..SERVERS)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("bind a loopback port"))
            .collect();
        let url = |listener: &TcpListener| {
            let address = listener.local_addr().expect("address of the listener");
            format!("http://{address}")
        };
        let urls: Vec<_> = listeners.iter().map(url).collect();
        println!("{}", urls.join(","));
        let threads = listeners.into_iter().map(|listener| {
            std::thread::spawn(move || {
                for socket in listener.incoming().flatten() {
                    std::thread::spawn(move || connection::serve(socket));
                }
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            let _ = thread.join();
        }
        std::process::exit(0);
    }

    /// Runs this program again as the servers. `main` must have called [`ConstantServers::run_if_child`].
    pub fn start() -> Self {
        let program = std::env::current_exe().expect("path of this program");
        let mut child = Command::new(program)
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start this program again");
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut endpoints = String::new();
        BufReader::new(stdout)
            .read_line(&mut endpoints)
            .expect("the servers print their URLs");
        Self {
            child,
            _stdin: stdin,
            endpoints: endpoints.trim().to_owned(),
        }
    }

    /// Returns the URLs of the servers, separated by commas.
    pub fn endpoints(&self) -> &str {
        &self.endpoints
    }
}

impl Drop for ConstantServers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
