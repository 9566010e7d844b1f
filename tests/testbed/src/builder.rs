//! What a cluster can be asked to be.

use std::path::Path;
use std::time::Duration;

use crate::binary::Binary;
use crate::cluster::Cluster;
use crate::tls::{self, Tls};

/// The options of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterBuilder {
    pub(crate) members: usize,
    pub(crate) version: Option<String>,
    election: Option<(u32, u32)>,
    quota: Option<u64>,
    progress: Option<Duration>,
    tls: Option<Tls>,
    tokens: Option<Tokens>,
    args: Vec<String>,
}

/// What the tokens of a cluster with authentication are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tokens {
    /// etcd's own, which end this long after they were used last.
    Simple(Duration),
    /// Signed ones (JWT, ES256), which end this long after they were given; the keys are made for the cluster.
    Jwt(Duration),
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            members: 1,
            version: None,
            election: None,
            quota: None,
            progress: None,
            tls: None,
            tokens: None,
            args: Vec::new(),
        }
    }
}

impl ClusterBuilder {
    /// How many members. Default: 1.
    pub fn members(mut self, members: usize) -> Self {
        assert!(members > 0, "a cluster has at least one member");
        self.members = members;
        self
    }

    /// Which release, such as `3.4`. Default: what `ETCD_BIN` or `ETCD_VERSION` says, else the newest.
    pub fn version(mut self, version: &str) -> Self {
        self.version = Some(version.to_owned());
        self
    }

    /// Heartbeat interval and election time-out, in milliseconds. Default: etcd's own, 100 and 1000.
    pub fn election(mut self, heartbeat: u32, election: u32) -> Self {
        self.election = Some((heartbeat, election));
        self
    }

    /// The size of the database at which etcd raises an alarm and refuses writes. Default: etcd's own, 2 GiB.
    pub fn quota_backend_bytes(mut self, bytes: u64) -> Self {
        self.quota = Some(bytes);
        self
    }

    /// How often a watch that asked for it is told its progress. Default: etcd's own, 10 minutes.
    pub fn progress_notify_interval(mut self, interval: Duration) -> Self {
        self.progress = Some(interval);
        self
    }

    /// Clients must speak TLS. Default: plain text.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// What tokens are, once authentication is on. Default: etcd's own simple ones, 5 minutes.
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Any other flag, `--name=value`; it wins over what the testbed would say. Default: none.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts it and waits until it is healthy.
    pub async fn start(self) -> Cluster {
        Cluster::build(self).await
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Writes the certificates and keys the flags name.
    pub(crate) fn write_files(&self, folder: &Path) {
        if let Some(tls) = &self.tls {
            tls.write(folder);
        }
        if let Some(Tokens::Jwt(_)) = self.tokens {
            tls::write_token_keys(folder);
        }
    }

    pub(crate) fn flags(&self, binary: &Binary, folder: &Path) -> Vec<String> {
        let mut flags = vec![
            // Data need not outlive the test, and a disk that syncs makes start-up slow.
            "--unsafe-no-fsync".to_owned(),
            "--logger=zap".to_owned(),
            "--log-level=error".to_owned(),
            // Members may be added and removed at once, not only after five seconds of health.
            "--strict-reconfig-check=false".to_owned(),
        ];
        if let Some((heartbeat, election)) = self.election {
            flags.push(format!("--heartbeat-interval={heartbeat}"));
            flags.push(format!("--election-timeout={election}"));
        }
        if let Some(bytes) = self.quota {
            flags.push(format!("--quota-backend-bytes={bytes}"));
        }
        if let Some(interval) = self.progress {
            let names = [
                "--watch-progress-notify-interval",
                "--experimental-watch-progress-notify-interval",
            ];
            let name = names
                .into_iter()
                .find(|name| binary.knows(name))
                .expect("etcd 3.4 and later know one of them");
            flags.push(format!("{name}={}ms", interval.as_millis()));
        }
        if let Some(tls) = &self.tls {
            flags.extend(tls.flags(folder));
        }
        match self.tokens {
            Some(Tokens::Simple(ttl)) => flags.push(format!("--auth-token-ttl={}", ttl.as_secs())),
            Some(Tokens::Jwt(ttl)) => flags.push(tls::token_flag(folder, ttl)),
            None => {}
        }
        flags.extend(self.args.iter().cloned());
        flags
    }
}
