//! Every example runs by itself, and ends by itself.

use std::{
    collections::BTreeSet,
    env, fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Longer than any takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"))
}

fn names() -> BTreeSet<String> {
    fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| {
            let file = entry.unwrap().file_name().into_string().unwrap();
            Some(file.strip_suffix(".rs")?.to_owned())
        })
        .collect()
}

fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .arg(command)
        .args(["--quiet", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .env_remove("ETCD_ENDPOINTS");
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    // What cargo tells this test of itself would make it build packages again that look at the same variables.
    for (name, _) in env::vars_os() {
        let told = |prefix| name.to_str().is_some_and(|name| name.starts_with(prefix));
        if told("CARGO_MANIFEST_") || told("CARGO_PKG_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

#[test]
fn every_example_ends_by_itself_and_with_success() {
    let built = cargo("build").arg("--examples").status().unwrap();
    assert!(built.success(), "the examples build");
    for name in names() {
        // Cargo becomes the example: what is killed here is the example itself.
        let mut example = cargo("run")
            .args(["--example", &name])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let limit = Instant::now() + PATIENCE;
        let ended = loop {
            if let Some(ended) = example.try_wait().unwrap() {
                break ended;
            }
            if Instant::now() > limit {
                example.kill().unwrap();
                panic!("{name} does not end");
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(ended.success(), "{name} ended with {ended}");
    }
}

#[test]
fn the_table_of_examples_is_complete_and_each_is_short() {
    let table = fs::read_to_string(folder().join("README.md")).unwrap();
    let listed: BTreeSet<_> = table
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| [`")?.split_once('`')?.0.to_owned()))
        .collect();
    assert_eq!(listed, names());
    for name in names() {
        let text = fs::read_to_string(folder().join(format!("{name}.rs"))).unwrap();
        let lines = text.lines().count();
        assert!(lines < 120, "{name} has {lines} lines");
    }
}
