//! Draws all pictures anew from the result files of the other benches, and copies those that the README shows into
//! `benches/pictures/`.
//!
//! `cargo bench --bench plots` only draws; a picture whose result file is missing is skipped. `cargo bench --bench plots
//! -- measure` runs the benches first, which takes about half an hour.

#![allow(clippy::expect_used, reason = "a bench panics on failure")]

#[path = "../charts/mod.rs"]
mod charts;
#[path = "../load_program/mod.rs"]
#[expect(dead_code, reason = "this bench starts no load program")]
mod load_program;

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode},
};

/// The benches that write the result files, with their arguments.
const BENCHES: [&[&str]; 6] = [
    &["unary"],
    &["failover"],
    &["watch", "--", "resume"],
    &["bulk"],
    &["large_answers"],
    &["growth"],
];
/// The pictures of the README.
const SHOWN: [&str; 4] = ["calls.svg", "failover.svg", "bulk.svg", "growth.svg"];

fn main() -> ExitCode {
    let mut failed: Vec<&&[&str]> = Vec::new();
    if env::args().any(|argument| argument == "measure") {
        failed.extend(BENCHES.iter().filter(|bench| !run(bench)));
    }
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/pictures");
    fs::create_dir_all(&pictures).expect("create the folder of the pictures");
    for file in charts::result_files() {
        for drawn in charts::draw(&load_program::result_path(file)) {
            let name = drawn.file_name().expect("a picture has a name");
            if SHOWN.iter().any(|shown| *shown == name) {
                let copy = pictures.join(name);
                fs::copy(&drawn, &copy).expect("copy the picture");
                println!("{}", copy.display());
            }
        }
    }
    for bench in &failed {
        eprintln!(
            "`cargo bench --bench {}` failed or missed a target",
            bench.join(" ")
        );
    }
    ExitCode::from(u8::from(!failed.is_empty()))
}

/// Returns whether the bench met its targets.
fn run(bench: &[&str]) -> bool {
    let cargo = env::var_os("CARGO").unwrap_or("cargo".into());
    let status = Command::new(cargo)
        .args(["bench", "--bench"])
        .args(bench)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    status.expect("start cargo").success()
}
