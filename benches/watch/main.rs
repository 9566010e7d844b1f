//! What watches cost: to resume many at once, to receive events, to have a slow one among them.
//!
//! `cargo bench --bench watch [-- resume|events|paused]`. Real members and proxies run beside the client, on the same
//! cores, so figures are those of a busy machine; memory is that of a process with nothing but the client.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unchecked_time_subtraction,
    reason = "a bench that can't go on says why and ends"
)]

mod events;
mod holder;
mod paused;
mod process;
#[path = "../program/mod.rs"]
#[expect(dead_code, reason = "other benches write their results to files")]
mod program;
mod resume;

use std::process::ExitCode;

use testbed::FastServer;

fn main() -> ExitCode {
    FastServer::run_if_child();
    holder::Holder::run_if_child();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let runs = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let holds = runtime.block_on(async {
        let mut holds = true;
        if runs("resume") {
            for watches in [1_000, 10_000] {
                holds &= resume::run(watches).await;
            }
        }
        if runs("events") {
            holds &= events::run();
        }
        if runs("paused") {
            holds &= paused::run().await;
        }
        holds
    });
    if holds {
        ExitCode::SUCCESS
    } else {
        eprintln!("a promise does not hold");
        ExitCode::FAILURE
    }
}
