//! Builds and runs the load program in `peers/`. It is a separate crate, because etcd-client needs protoc to build.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The built load program.
pub struct LoadProgram(PathBuf);

impl LoadProgram {
    /// Builds the program in release mode. Takes protoc from `PROTOC`, else from a crate.
    pub fn build() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers");
        let target = target_folder().join("peers");
        let binaries = target.join("release");
        let build = |package: &str, protoc: Option<&Path>| {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
            cargo
                .args(["build", "--release", "--package", package])
                .current_dir(&folder)
                .env("CARGO_TARGET_DIR", &target)
                .stdout(Stdio::null());
            if let Some(protoc) = protoc {
                cargo.env("PROTOC", protoc);
            }
            let built = cargo.status().expect("start cargo");
            assert!(built.success(), "cannot build {package}");
        };
        let protoc = std::env::var_os("PROTOC").map(PathBuf::from);
        let protoc = protoc.unwrap_or_else(|| {
            build("protoc-path", None);
            let path = Command::new(binaries.join("protoc-path")).output();
            let path = path.expect("run protoc-path").stdout;
            PathBuf::from(String::from_utf8_lossy(&path).trim())
        });
        build("peers", Some(&protoc));
        Self(binaries.join("peers"))
    }

    /// Returns the command for a run of the program.
    pub fn command(&self, mode: &str, arguments: &[(&str, &str)]) -> Command {
        program_command(&self.0, mode, arguments)
    }
}

/// Returns the command for a run of a program with the arguments of the load program.
pub fn program_command(program: &Path, mode: &str, arguments: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    command.arg(mode);
    let arguments = arguments.iter();
    command.args(arguments.map(|(name, value)| format!("{name}={value}")));
    command
}

/// Returns the path of a result file: `bench/` in the target folder.
pub fn result_path(name: &str) -> PathBuf {
    let folder = target_folder().join("bench");
    std::fs::create_dir_all(&folder).expect("create the result folder");
    folder.join(name)
}

/// Returns the target folder that this program was built in.
fn target_folder() -> PathBuf {
    let program = std::env::current_exe().expect("path of this program");
    let folder = program
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists());
    folder
        .expect("a bench runs from its target folder")
        .to_owned()
}

/// Formats whether a target was met.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}
