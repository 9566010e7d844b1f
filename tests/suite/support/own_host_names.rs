//! Tests that run in a child process with host names of their own.

/// Runs the check, an asynchronous function of a [`HostsFile`](testbed::HostsFile), in a child process that uses this
/// hosts file. Use it as the last expression of a test function.
macro_rules! with_hosts_file {
    ($check:expr) => {{
        if let Some(hosts) = testbed::HostsFile::of_this_process() {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            return runtime.block_on($check(hosts));
        }
        if !testbed::HostsFile::is_supported() {
            return $crate::support::skipped_check::report_skipped(
                "host names: this machine allows no user namespaces",
            );
        }
        let hosts = testbed::HostsFile::new();
        let child = $crate::support::process_isolation::child_test!()
            .launched_by(hosts.launcher())
            .run();
        println!("{child}");
        child.assert_passed();
    }};
}

pub(crate) use with_hosts_file;
