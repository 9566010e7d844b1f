//! Runs the fast server on its own: `fast_server [events] [batch] [value size]`. Prints its URL, exits at the end of stdin.

use testbed::FastServer;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    FastServer::run(testbed::parse_watch_plan(args.iter().map(String::as_str)));
}
