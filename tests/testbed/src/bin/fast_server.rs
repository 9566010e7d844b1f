//! The fast server, by hand: `fast_server [events] [batch] [value]`. Prints its address, ends when its input does.

use testbed::FastServer;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    FastServer::run(testbed::parse_watch_plan(args.iter().map(String::as_str)));
}
