//! Reports of checks that this machine cannot run.

use std::io::Write;

/// Prints the name of the running test and the reason why it skips a check.
///
/// Writes to the standard error of the process, so that the line is visible even if the test passes.
pub fn report_skipped(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("unnamed test");
    let _ = writeln!(std::io::stderr(), "\nNOT CHECKED: {test}: {reason}");
}
