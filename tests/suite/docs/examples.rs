//! Every example is listed and short, needs no running etcd, and ends with success.

use std::{
    collections::BTreeSet,
    env, fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Longer than any example takes on a busy machine.
const EXAMPLE_TIMEOUT: Duration = Duration::from_secs(120);

fn examples_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"))
}

fn example_names() -> BTreeSet<String> {
    fs::read_dir(examples_folder())
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
    // Cargo sets these variables for this test. Passed on, they would make dependencies build again.
    for (name, _) in env::vars_os() {
        let has_prefix = |prefix| name.to_str().is_some_and(|name| name.starts_with(prefix));
        if has_prefix("CARGO_MANIFEST_") || has_prefix("CARGO_PKG_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

#[test]
fn every_example_ends_with_success() {
    let build = cargo("build").arg("--examples").status().unwrap();
    assert!(build.success(), "the examples do not build");
    for name in example_names() {
        // Cargo replaces itself with the example, so that `kill` reaches the example.
        let mut example = cargo("run")
            .args(["--example", &name])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + EXAMPLE_TIMEOUT;
        let status = loop {
            if let Some(status) = example.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                example.kill().unwrap();
                panic!("example {name} did not end within {EXAMPLE_TIMEOUT:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "example {name} ended with {status}");
    }
}

#[test]
fn every_example_is_listed_and_short() {
    let table = fs::read_to_string(examples_folder().join("README.md")).unwrap();
    let listed: BTreeSet<_> = table
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| [`")?.split_once('`')?.0.to_owned()))
        .collect();
    assert_eq!(listed, example_names());
    for name in example_names() {
        let text = fs::read_to_string(examples_folder().join(format!("{name}.rs"))).unwrap();
        let lines = text.lines().count();
        assert!(lines < 120, "{name} has {lines} lines");
    }
}
