//! The load program in `peers/`: a crate of its own, built here, because etcd-client needs protoc to be built.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The load program, built.
pub struct Program(PathBuf);

impl Program {
    /// Builds it in release, with protoc from a crate.
    pub fn build() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers");
        let target = target().join("peers");
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
            let built = cargo.status().expect("cargo can be started");
            assert!(built.success(), "{package} does not build");
        };
        let protoc = std::env::var_os("PROTOC").map(PathBuf::from);
        let protoc = protoc.unwrap_or_else(|| {
            build("protoc-path", None);
            let path = Command::new(binaries.join("protoc-path")).output();
            let path = path.expect("protoc-path was just built").stdout;
            PathBuf::from(String::from_utf8_lossy(&path).trim())
        });
        build("peers", Some(&protoc));
        Self(binaries.join("peers"))
    }

    /// A run of it, not started yet.
    pub fn command(&self, mode: &str, arguments: &[(&str, &str)]) -> Command {
        let mut command = Command::new(&self.0);
        command.arg(mode);
        command.args(
            arguments
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        command
    }
}

/// Where results go: `bench/` in the target folder.
pub fn results(name: &str) -> PathBuf {
    let folder = target().join("bench");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder.join(name)
}

/// The target folder this program was built in.
fn target() -> PathBuf {
    let program = std::env::current_exe().expect("a program knows where it is");
    let folder = program
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists());
    folder
        .expect("a bench runs from its target folder")
        .to_owned()
}

/// What a bench says of something promised.
pub fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "BROKEN" }
}
