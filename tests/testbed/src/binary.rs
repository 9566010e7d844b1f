//! Which etcd runs: `ETCD_BIN` (a path), `ETCD_VERSION` (3.4, 3.5, 3.6 or 3.7), else the newest.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{env, fs};

/// The release in the testbed's own dependencies.
const NEWEST: &str = "3.7";
/// Releases that come through a package each, outside the workspace.
const OLDER: [(&str, &str); 3] = [("3.4", "v3_4"), ("3.5", "v3_5"), ("3.6", "v3_6")];

/// Every release of etcd the testbed can run, oldest first.
pub const VERSIONS: [&str; 4] = ["3.4", "3.5", "3.6", NEWEST];

/// An etcd that can be started, and what it understands.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    pub(crate) path: PathBuf,
    help: Arc<String>,
}

impl Binary {
    /// The asked release, or what the environment says, or the newest.
    pub(crate) fn find(asked: Option<&str>) -> Self {
        let from_env = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let path = match (asked, from_env("ETCD_BIN")) {
            (Some(version), _) => of_version(version),
            (None, Some(path)) => PathBuf::from(path),
            (None, None) => of_version(from_env("ETCD_VERSION").as_deref().unwrap_or(NEWEST)),
        };
        Self {
            help: help_of(&path),
            path,
        }
    }

    /// Whether it knows a flag; unknown ones are fatal to etcd.
    pub(crate) fn knows(&self, flag: &str) -> bool {
        self.help
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .any(|word| word == flag)
    }
}

fn of_version(version: &str) -> PathBuf {
    let wanted = version.trim_start_matches('v');
    let is = |series: &str| {
        wanted == series
            || wanted
                .strip_prefix(series)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    if is(NEWEST) {
        return etcd_bin_vendored::etcd_bin_path()
            .map_or_else(|why| no_binary(&why), Path::to_path_buf);
    }
    match OLDER.iter().find(|(series, _)| is(series)) {
        Some((_, package)) => older(package),
        None => panic!(
            "there is no etcd {version} here: ETCD_VERSION is one of {}",
            VERSIONS.join(", ")
        ),
    }
}

fn no_binary(why: &dyn std::fmt::Display) -> ! {
    panic!(
        "no etcd binary is packaged for this platform ({why}): install etcd 3.4 or newer and set ETCD_BIN to its path"
    )
}

/// Builds the package that carries an older release, once for a target folder: its path is kept there.
fn older(package: &str) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let target = target_folder().join("etcd-versions");
    let kept = target.join(format!("{package}.path"));
    if let Ok(path) = fs::read_to_string(&kept)
        && Path::new(path.trim()).exists()
    {
        return PathBuf::from(path.trim());
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("versions")
        .join(package)
        .join("Cargo.toml");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["run", "--quiet", "--locked", "--manifest-path"])
        .arg(&manifest)
        .arg("--target-dir")
        .arg(&target)
        .output();
    let output = match built {
        Ok(output) if output.status.success() => output,
        Ok(output) => no_binary(&String::from_utf8_lossy(&output.stderr).trim()),
        Err(why) => no_binary(&format!("cargo does not run: {why}")),
    };
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // Renamed into place, for several test processes may be here at once.
    let beside = target.join(format!("{package}.{}", std::process::id()));
    if fs::write(&beside, path.as_os_str().as_encoded_bytes()).is_ok() {
        let _ = fs::rename(&beside, &kept);
    }
    path
}

/// The target folder this test was built into: cargo marks it.
fn target_folder() -> PathBuf {
    let marked = |folder: &&Path| folder.join("CACHEDIR.TAG").exists();
    let exe = env::current_exe().unwrap_or_default();
    exe.ancestors()
        .filter(marked)
        .last()
        .map_or_else(env::temp_dir, Path::to_path_buf)
}

fn help_of(path: &Path) -> Arc<String> {
    static KNOWN: OnceLock<Mutex<HashMap<PathBuf, Arc<String>>>> = OnceLock::new();
    let mut known = KNOWN
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    known
        .entry(path.to_path_buf())
        .or_insert_with(|| match Command::new(path).arg("--help").output() {
            // 3.4 prints its help to stderr.
            Ok(output) => Arc::new(
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
            ),
            Err(why) => panic!("{} does not run: {why}", path.display()),
        })
        .clone()
}
