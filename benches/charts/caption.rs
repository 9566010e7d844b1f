//! The caption below each picture: date, machine and versions.

use std::{fs, path::Path, time::SystemTime};

/// Versions of the other clients.
const PEERS_LOCK: &str = include_str!("../peers/Cargo.lock");
/// Version of etcd.
const LOCK: &str = include_str!("../../Cargo.lock");

/// Date, machine and versions of a measurement.
pub struct Caption {
    date: String,
    machine: String,
}

impl Caption {
    /// Returns the caption of a result file. The date is that of the file.
    pub fn new(result: &Path) -> Self {
        let written = fs::metadata(result).and_then(|metadata| metadata.modified());
        let since_epoch = written
            .unwrap_or_else(|_| SystemTime::now())
            .duration_since(SystemTime::UNIX_EPOCH);
        let days = since_epoch.map_or(0, |time| time.as_secs() / 86_400);
        Self {
            date: date_of_day(days),
            machine: machine(),
        }
    }

    /// Returns the text, with the versions of etcd (if it took part) and of the named packages.
    pub fn text(&self, with_etcd: bool, packages: &[&str]) -> String {
        let mut versions = vec![concat!("actix-etcd ", env!("CARGO_PKG_VERSION")).to_owned()];
        for package in packages {
            versions.push(format!("{package} {}", locked_version(PEERS_LOCK, package)));
        }
        if with_etcd {
            let etcd = std::env::var("ETCD_VERSION").ok();
            let etcd = etcd.filter(|version| !version.is_empty());
            let etcd = etcd.unwrap_or_else(|| locked_version(LOCK, "etcd-bin-vendored"));
            versions.push(format!("etcd {etcd}"));
        }
        format!("{} · {} · {}", self.date, self.machine, versions.join(", "))
    }
}

fn locked_version(lock: &str, package: &str) -> String {
    let entry = lock
        .split(&format!("name = \"{package}\"\nversion = \""))
        .nth(1);
    let version = entry.and_then(|entry| entry.split('"').next());
    version.unwrap_or("?").to_owned()
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("", |model| model.trim_start_matches(['\t', ' ', ':']));
    let plural = if cores == 1 { "" } else { "s" };
    match model {
        "" | "unknown" => format!("{cores} core{plural}"),
        model => format!("{cores} core{plural} of {model}"),
    }
}

/// Returns the date of a day since 1970 as `YYYY-MM-DD`.
fn date_of_day(days: u64) -> String {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut rest) = (1970, days);
    while rest >= 365 + u64::from(is_leap(year)) {
        rest -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", rest + 1)
}
