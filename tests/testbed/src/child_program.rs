//! This program, run again as a child process. An environment variable selects the task of the child.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The child process. Dropping this value kills it.
#[derive(Debug)]
pub struct ChildProgram {
    child: Child,
    /// The child exits when this pipe closes, even if this process is killed.
    _stdin: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ChildProgram {
    /// Runs this program again with the environment variable `name` set to `task`. The child must call
    /// [`exit_at_end_of_stdin`].
    pub fn start(name: &str, task: &str) -> Self {
        let program = std::env::current_exe().expect("path of this program");
        let mut child = Command::new(program)
            .env(name, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start this program again");
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        Self {
            child,
            _stdin: stdin,
            output: BufReader::new(stdout),
        }
    }

    /// Waits for the next line that the child prints, and returns it without its end. Blocks the thread. Returns an
    /// empty line if the child has ended.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .expect("read the output of the child");
        line.trim_end().to_owned()
    }

    /// Returns the process id of the child.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ChildProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a thread that exits this process at the end of stdin.
pub fn exit_at_end_of_stdin() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}
