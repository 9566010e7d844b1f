//! Load program for all clients, so that the same loop measures each of them.
//!
//! `peers load client=ours op=get callers=64 runtime=one endpoints=http://127.0.0.1:2379 warmup=0.2 secs=1` prints
//! one line of JSON. `peers stream client=ours callers=4 op=put endpoints=…` runs until the end of stdin and prints
//! one line per call; see [`stream`]. `peers events client=ours hedged=true endpoints=…` prints one line per event of a
//! watch; see [`events`].

mod arguments;
mod clients;
mod events;
mod load;
mod stream;
mod watch;

use std::process::ExitCode;

use arguments::{Arguments, ClientKind, Mode, Runtime};
use clients::{Connect, EtcdClient, Etcdrs, OnArbiter, OnOwnThread};

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => return exit_with_error(&error),
    };
    if arguments.mode == Mode::Watch {
        return match watch(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit_with_error(&error),
        };
    }
    if arguments.mode == Mode::Events {
        return match events::run(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit_with_error(&error),
        };
    }
    let result = match (arguments.client, arguments.runtime) {
        (ClientKind::Ours, Runtime::One) => {
            actix_rt::System::new().block_on(run::<OnArbiter>(&arguments))
        }
        // The client has its own thread, so the callers get one thread.
        (ClientKind::Ours, Runtime::Two) => one_thread().block_on(run::<OnOwnThread>(&arguments)),
        (ClientKind::EtcdClient, Runtime::One) => {
            one_thread().block_on(run::<EtcdClient>(&arguments))
        }
        (ClientKind::EtcdClient, Runtime::Two) => {
            two_workers().block_on(run::<EtcdClient>(&arguments))
        }
        (ClientKind::Etcdrs, Runtime::One) => one_thread().block_on(run::<Etcdrs>(&arguments)),
        (ClientKind::Etcdrs, Runtime::Two) => two_workers().block_on(run::<Etcdrs>(&arguments)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_with_error(&error),
    }
}

fn watch(arguments: &Arguments) -> Result<(), String> {
    match (arguments.client, arguments.runtime) {
        (ClientKind::Ours, Runtime::One) => {
            actix_rt::System::new().block_on(watch::run::<OnArbiter>(arguments))
        }
        (ClientKind::Ours, Runtime::Two) => {
            one_thread().block_on(watch::run::<OnOwnThread>(arguments))
        }
        (ClientKind::EtcdClient, Runtime::One) => {
            one_thread().block_on(watch::run::<EtcdClient>(arguments))
        }
        (ClientKind::EtcdClient, Runtime::Two) => {
            two_workers().block_on(watch::run::<EtcdClient>(arguments))
        }
        (ClientKind::Etcdrs, _) => Err("mode `watch` does not support etcdrs".to_owned()),
    }
}

async fn run<C: Connect>(arguments: &Arguments) -> Result<(), String> {
    let client = C::connect(&arguments.endpoints).await?;
    match arguments.mode {
        Mode::Load => {
            println!("{}", load::run(client, arguments).await?);
            Ok(())
        }
        Mode::Stream => stream::run(client, arguments).await,
        Mode::Watch | Mode::Events => Err("watches make no calls".to_owned()),
    }
}

pub fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("start the runtime")
}

fn two_workers() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("start the runtime")
}

fn exit_with_error(error: &str) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}
