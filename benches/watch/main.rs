//! Measures watches: resuming many at once, the throughput of events, and the effect of a paused reader.
//!
//! `cargo bench --bench watch [-- resume|events|paused]`. Real members and proxies run on the same cores as the
//! client, so times are those of a busy machine. Memory of `resume` is measured in a process that runs only the
//! client. `resume` writes its results to `watch_resume.json`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unchecked_time_subtraction,
    reason = "a bench panics on failure"
)]

#[path = "../charts/mod.rs"]
mod charts;
mod events;
mod holder;
#[path = "../load_program/mod.rs"]
mod load_program;
mod memory;
mod paused;
mod resume;

use std::process::ExitCode;

use testbed::FastServer;

fn main() -> ExitCode {
    FastServer::run_if_child();
    holder::WatchHolder::run_if_child();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let selected = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let is_selected = |name: &str| selected.as_deref().is_none_or(|part| part == name);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("start the runtime");
    let all_met = runtime.block_on(async {
        let mut all_met = true;
        if is_selected("resume") {
            let mut results = Vec::new();
            for watches in [1_000, 10_000] {
                let (met, result) = resume::run(watches).await;
                all_met &= met;
                results.push(result);
            }
            let path = load_program::result_path("watch_resume.json");
            let text = serde_json::Value::from(results).to_string();
            std::fs::write(&path, text).expect("write the result file");
            println!("{}", path.display());
            charts::draw(&path);
        }
        if is_selected("events") {
            all_met &= events::run();
        }
        if is_selected("paused") {
            all_met &= paused::run().await;
        }
        all_met
    });
    if all_met {
        ExitCode::SUCCESS
    } else {
        eprintln!("a target was missed");
        ExitCode::FAILURE
    }
}
