//! Tests that run again in a child process, because they count threads or actors, or need an environment of their own.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead, BufReader, Read, copy, sink},
    process::{Child, Command, Stdio},
    thread,
};

const ISOLATED: &str = "ACTIX_ETCD_ISOLATED_TEST";

/// Printed by the test harness, before the test starts, if exactly one test matches the requested name.
const ONE_TEST: &str = "running 1 test";

/// Returns a [`ChildTest`] that runs the test function around this call.
macro_rules! child_test {
    () => {{
        fn marker() {}
        $crate::support::process_isolation::ChildTest::new(
            module_path!(),
            std::any::type_name_of_val(&marker),
        )
    }};
}

/// Returns whether the test around this call is the only one in its process. If it is not, runs the test in a child
/// process and fails unless it passes there.
macro_rules! in_own_process {
    () => {
        $crate::support::process_isolation::is_isolated(
            $crate::support::process_isolation::child_test!(),
        )
    };
}

pub(crate) use {child_test, in_own_process};

/// One test of this binary, to be run in a child process.
pub struct ChildTest {
    name: String,
    command: Command,
}

/// Output of a child process that has ended.
pub struct ChildOutput {
    pub passed: bool,
    pub stdout: String,
    pub stderr: String,
}

impl ChildTest {
    /// Use [`child_test!`]. `item` is the path of any item inside the test function.
    pub fn new(module: &str, item: &str) -> Self {
        let function = item
            .strip_prefix(module)
            .and_then(|rest| rest.strip_prefix("::"))
            .and_then(|rest| rest.split("::").next())
            .expect("the item is inside a function of the module");
        // The harness names tests without the name of the crate.
        let (_crate, module) = module.split_once("::").expect("tests are in modules");
        let name = format!("{module}::{function}");
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", &name, "--nocapture"]);
        Self { name, command }
    }

    /// Starts the test through `launcher`, a command that runs the program given by its last arguments.
    pub fn launched_by(mut self, mut launcher: Command) -> Self {
        launcher
            .arg(self.command.get_program())
            .args(self.command.get_args());
        self.command = launcher;
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    #[cfg(feature = "tls")]
    pub fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Runs the test to its end. Fails unless the child ran exactly one test, which may have failed.
    pub fn run(mut self) -> ChildOutput {
        let output = self.command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let stdout = text(&output.stdout);
        let output = ChildOutput {
            passed: output.status.success() && stdout.contains("1 passed;"),
            stdout,
            stderr: text(&output.stderr),
        };
        assert!(
            output.stdout.lines().any(|line| line == ONE_TEST),
            "the child process did not run exactly one test named {}: {output}",
            self.name
        );
        output
    }

    /// Starts the test with a piped standard input and a piped standard error. Fails unless the child runs exactly one
    /// test.
    pub fn spawn(mut self) -> Child {
        let mut child = self
            .command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let first_line = stdout
            .by_ref()
            .lines()
            .map(Result::unwrap)
            .find(|line| !line.is_empty());
        if first_line.as_deref() != Some(ONE_TEST) {
            let _ = child.kill();
            let _ = child.wait();
            panic!(
                "the child process did not run exactly one test named {}: {first_line:?}",
                self.name
            );
        }
        // The child fails when it prints into a closed pipe.
        thread::spawn(move || copy(&mut stdout, &mut sink()));
        child
    }
}

impl ChildOutput {
    pub fn assert_passed(&self) {
        assert!(self.passed, "the test failed in its child process: {self}");
    }
}

impl std::fmt::Display for ChildOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr)
    }
}

/// Use [`in_own_process!`].
pub fn is_isolated(test: ChildTest) -> bool {
    if env::var_os(ISOLATED).is_some() {
        return true;
    }
    let output = test.env(ISOLATED, "1").run();
    println!("{output}");
    output.assert_passed();
    false
}
