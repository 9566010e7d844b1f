//! One load program for every client, so that all of them are measured by the same loop.
//!
//! `peers load client=ours op=get callers=64 runtime=one endpoints=http://127.0.0.1:2379 warmup=0.2 secs=1` prints one
//! line of JSON. `peers stream client=ours callers=4 op=put endpoints=…` goes on until its input ends and prints a
//! line a call; see [`stream`].

mod arguments;
mod clients;
mod load;
mod stream;
mod watch;

use std::process::ExitCode;

use arguments::{Arguments, ClientKind, Mode, Runtime};
use clients::{Connect, EtcdClient, Etcdrs, OnArbiter, OnOwnThread};

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => return failed(&error),
    };
    if arguments.mode == Mode::Watch {
        return match watch(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error),
        };
    }
    let done = match (arguments.client, arguments.runtime) {
        (ClientKind::Ours, Runtime::One) => {
            actix_rt::System::new().block_on(run::<OnArbiter>(&arguments))
        }
        // The client's own thread is the second one: the callers must not get a third.
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
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
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
        (ClientKind::Etcdrs, _) => Err("etcdrs is not measured here".to_owned()),
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
        Mode::Watch => Err("it has no calls".to_owned()),
    }
}

fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts")
}

fn two_workers() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts")
}

fn failed(error: &str) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}
