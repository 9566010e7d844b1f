//! Load program for all clients, so that the same loop measures each of them.
//!
//! `peers load client=ours op=get callers=64 runtime=one endpoints=http://127.0.0.1:2379 warmup=0.2 secs=1` prints
//! one line of JSON. `peers stream client=ours callers=4 op=put endpoints=…` runs until the end of stdin and prints
//! one line per call; see [`stream`]. `peers events client=ours hedged=true endpoints=…` prints one line per event of a
//! watch; see [`events`]. `peers bulk client=ours task=import keys=100000 endpoints=…` writes keys once; see [`bulk`].

mod arguments;
mod bulk;
mod clients;
mod events;
mod load;
mod stream;
mod watch;

use std::process::ExitCode;

use arguments::{Arguments, ClientKind, Mode, Runtime};
use clients::{Connect, EtcdClient, Etcdrs, OnArbiter, OnOwnThread, ThroughActor};

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
    if let (Mode::Bulk, ClientKind::Ours) = (arguments.mode, arguments.client) {
        return match one_thread().block_on(run_bulk(&arguments)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit_with_error(&error),
        };
    }
    let result = match (arguments.client, arguments.runtime) {
        (ClientKind::Ours, runtime) => {
            application(runtime).block_on(run::<OnOwnThread>(&arguments))
        }
        (ClientKind::OursInPlace, Runtime::One) => {
            actix_rt::System::new().block_on(run::<OnArbiter>(&arguments))
        }
        (ClientKind::OursActor, Runtime::One) => {
            actix_rt::System::new().block_on(run::<ThroughActor>(&arguments))
        }
        (ClientKind::OursInPlace | ClientKind::OursActor, Runtime::Two) => {
            Err("an arbiter has one thread: use runtime=one".to_owned())
        }
        (ClientKind::EtcdClient, runtime) => {
            application(runtime).block_on(run::<EtcdClient>(&arguments))
        }
        (ClientKind::Etcdrs, runtime) => application(runtime).block_on(run::<Etcdrs>(&arguments)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_with_error(&error),
    }
}

fn watch(arguments: &Arguments) -> Result<(), String> {
    match (arguments.client, arguments.runtime) {
        (ClientKind::OursInPlace, Runtime::One) => {
            actix_rt::System::new().block_on(watch::run::<OnArbiter>(arguments))
        }
        (ClientKind::Ours, runtime) => {
            application(runtime).block_on(watch::run::<OnOwnThread>(arguments))
        }
        (ClientKind::EtcdClient, runtime) => {
            application(runtime).block_on(watch::run::<EtcdClient>(arguments))
        }
        (ClientKind::OursInPlace, Runtime::Two)
        | (ClientKind::OursActor | ClientKind::Etcdrs, _) => Err(
            "mode `watch` supports ours, ours-in-place on one thread, and etcd-client".to_owned(),
        ),
    }
}

/// actix-etcd has its own thread here, as by default.
async fn run_bulk(arguments: &Arguments) -> Result<(), String> {
    let client = OnOwnThread::connect(&arguments.endpoints).await?;
    bulk::run_ours(client.client(), arguments).await
}

async fn run<C: Connect>(arguments: &Arguments) -> Result<(), String> {
    let client = C::connect(&arguments.endpoints).await?;
    match arguments.mode {
        Mode::Load => {
            println!("{}", load::run(client, arguments).await?);
            Ok(())
        }
        Mode::Stream => stream::run(client, arguments).await,
        Mode::Bulk => bulk::run_calls(client, arguments).await,
        Mode::Watch | Mode::Events => Err("watches make no calls".to_owned()),
    }
}

/// Returns the runtime of the application. Each client under comparison gets the same one.
fn application(runtime: Runtime) -> tokio::runtime::Runtime {
    match runtime {
        Runtime::One => one_thread(),
        Runtime::Two => two_workers(),
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
