//! Three servers with constant responses, which are never the bottleneck: HTTP/2 frames written by hand, one thread per
//! connection, one write per read. There are three, as in a cluster, so that clients balance their calls.
//!
//! The servers do not decode requests. An empty request gets a `Status` response (the health check of clients), every
//! other one a `Range` response, which clients also accept for `Put` (its fields are a subset). Decoding headers would
//! take more CPU than the fastest client, and hide the differences between the clients.

mod connection;

use std::net::TcpListener;

use testbed::{ChildProgram, exit_at_end_of_stdin};

/// Environment variable that makes the program run as the servers.
const CHILD: &str = "BENCH_CONSTANT_SERVERS";

const SERVERS: usize = 3;

/// The process of the servers, which is killed when this value is dropped.
pub struct ConstantServers {
    _child: ChildProgram,
    endpoints: String,
}

impl ConstantServers {
    /// Runs the servers if this process was started for that, and does not return in that case.
    pub fn run_if_child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        exit_at_end_of_stdin();
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
        let mut child = ChildProgram::start(CHILD, "1");
        let endpoints = child.next_line();
        Self {
            _child: child,
            endpoints,
        }
    }

    /// Returns the URLs of the servers, separated by commas.
    pub fn endpoints(&self) -> &str {
        &self.endpoints
    }
}
