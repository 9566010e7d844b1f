//! What this machine cannot show is said, not passed over.

use std::io::Write;

/// Says what was not checked, and why, where a test that passes is heard as well: on the process's own standard error.
pub fn not_checked(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "\nNOT CHECKED: {test}: {why}");
}
