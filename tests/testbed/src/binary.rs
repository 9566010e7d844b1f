//! Selects the etcd binary: `ETCD_BIN` (a path), else `ETCD_VERSION` (3.4, 3.5, 3.6 or 3.7), else the newest.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{env, fs};

/// The release among the testbed's direct dependencies.
const NEWEST: &str = "3.7";
/// The other releases: each has a package outside the workspace.
const OLDER: [(&str, &str); 3] = [("3.4", "v3_4"), ("3.5", "v3_5"), ("3.6", "v3_6")];

/// Every etcd release the testbed can run, oldest first.
pub const VERSIONS: [&str; 4] = ["3.4", "3.5", "3.6", NEWEST];

/// An etcd binary and its help text.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    pub(crate) path: PathBuf,
    help: Arc<String>,
}

impl Binary {
    /// Finds the binary of `version`, else the one selected by the environment, else the newest.
    pub(crate) fn find(version: Option<&str>) -> Self {
        let from_env = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let path = match (version, from_env("ETCD_BIN")) {
            (Some(version), _) => path_of_version(version),
            (None, Some(path)) => PathBuf::from(path),
            (None, None) => path_of_version(from_env("ETCD_VERSION").as_deref().unwrap_or(NEWEST)),
        };
        Self {
            help: help_text(&path),
            path,
        }
    }

    /// Returns whether the binary accepts a flag; etcd exits on unknown flags.
    pub(crate) fn supports_flag(&self, flag: &str) -> bool {
        self.help
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .any(|word| word == flag)
    }
}

fn path_of_version(version: &str) -> PathBuf {
    let version_number = version.trim_start_matches('v');
    let is_of_series = |series: &str| {
        version_number == series
            || version_number
                .strip_prefix(series)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    if is_of_series(NEWEST) {
        return etcd_bin_vendored::etcd_bin_path()
            .map_or_else(|error| panic_without_binary(&error), Path::to_path_buf);
    }
    match OLDER.iter().find(|(series, _)| is_of_series(series)) {
        Some((_, package)) => build_older(package),
        None => panic!(
            "unknown etcd version {version}: set ETCD_VERSION to one of {}",
            VERSIONS.join(", ")
        ),
    }
}

fn panic_without_binary(reason: &dyn std::fmt::Display) -> ! {
    panic!(
        "no etcd binary is packaged for this platform ({reason}): \
         install etcd 3.4 or newer and set ETCD_BIN to its path"
    )
}

/// Builds the package of an older release and returns the path of its binary. The path is cached in the target folder.
fn build_older(package: &str) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _guard = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let target = target_folder().join("etcd-versions");
    let cache_file = target.join(format!("{package}.path"));
    if let Ok(path) = fs::read_to_string(&cache_file)
        && Path::new(path.trim()).exists()
    {
        return PathBuf::from(path.trim());
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("versions")
        .join(package)
        .join("Cargo.toml");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let result = Command::new(cargo)
        .args(["run", "--quiet", "--locked", "--manifest-path"])
        .arg(&manifest)
        .arg("--target-dir")
        .arg(&target)
        .output();
    let output = match result {
        Ok(output) if output.status.success() => output,
        Ok(output) => panic_without_binary(&String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => panic_without_binary(&format!("cannot run cargo: {error}")),
    };
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // Several test processes may write the cache file at once, so it is renamed into place.
    let temporary = target.join(format!("{package}.{}", std::process::id()));
    if fs::write(&temporary, path.as_os_str().as_encoded_bytes()).is_ok() {
        let _ = fs::rename(&temporary, &cache_file);
    }
    path
}

/// Returns the cargo target folder of this executable: the outermost one with a cache tag.
fn target_folder() -> PathBuf {
    let has_cache_tag = |folder: &&Path| folder.join("CACHEDIR.TAG").exists();
    let exe = env::current_exe().unwrap_or_default();
    exe.ancestors()
        .filter(has_cache_tag)
        .last()
        .map_or_else(env::temp_dir, Path::to_path_buf)
}

fn help_text(path: &Path) -> Arc<String> {
    static CACHE: OnceLock<Mutex<HashMap<PathBuf, Arc<String>>>> = OnceLock::new();
    let mut cache = CACHE
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    cache
        .entry(path.to_path_buf())
        .or_insert_with(|| match Command::new(path).arg("--help").output() {
            // 3.4 prints its help to stderr.
            Ok(output) => Arc::new(
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
            ),
            Err(error) => panic!("cannot run {}: {error}", path.display()),
        })
        .clone()
}
