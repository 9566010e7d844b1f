//! Tests that need a process to themselves: others beside them have actors, threads and listeners of their own.

use std::process::Command;

const ALONE: &str = "ALONE";

/// Whether this is the process of its own. If not, it is started for this test, and has to succeed.
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let alone = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&alone.stdout);
    println!("{said}{}", String::from_utf8_lossy(&alone.stderr));
    assert!(alone.status.success());
    // A name that is none would pass without a test.
    assert!(said.contains("1 passed"));
    false
}
