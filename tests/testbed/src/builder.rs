//! The options of a cluster, and the etcd flags they become.

use std::path::Path;
use std::time::Duration;

use crate::binary::Binary;
use crate::cluster::Cluster;
use crate::tls::{self, Tls};

/// Options of a cluster.
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

/// Kind and lifetime of the auth tokens of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tokens {
    /// Simple tokens, which expire this long after their last use.
    Simple(Duration),
    /// Signed tokens (JWT, ES256), which expire this long after login. The keys are generated per cluster.
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
            tls: Tls::from_env(),
            tokens: None,
            args: Vec::new(),
        }
    }
}

impl ClusterBuilder {
    /// Number of members. Default: 1.
    pub fn members(mut self, members: usize) -> Self {
        assert!(members > 0, "a cluster needs at least one member");
        self.members = members;
        self
    }

    /// etcd release, such as `3.4`. Default: `ETCD_BIN` or `ETCD_VERSION`, else the newest.
    pub fn version(mut self, version: &str) -> Self {
        self.version = Some(version.to_owned());
        self
    }

    /// Heartbeat interval and election timeout, in milliseconds. Default: 100 and 1000, as in etcd.
    pub fn election(mut self, heartbeat: u32, election: u32) -> Self {
        self.election = Some((heartbeat, election));
        self
    }

    /// Database size at which etcd raises an alarm and rejects writes. Default: 2 GiB, as in etcd.
    pub fn quota_backend_bytes(mut self, bytes: u64) -> Self {
        self.quota = Some(bytes);
        self
    }

    /// Interval of progress notifications, for watches that request them. Default: 10 minutes, as in etcd.
    pub fn progress_notify_interval(mut self, interval: Duration) -> Self {
        self.progress = Some(interval);
        self
    }

    /// TLS between clients and members. Default: none, or the certificate in the folder that `ETCD_TLS` names.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Auth tokens, used once authentication is enabled. Default: simple tokens of 5 minutes, as in etcd.
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Adds a flag, `--name=value`, which overrides the flags of the testbed. Default: none.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts the cluster and waits until it is healthy.
    pub async fn start(self) -> Cluster {
        Cluster::build(self).await
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Writes the certificates and keys that the flags refer to.
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
            // The data need not survive a crash, and fsync slows the start.
            "--unsafe-no-fsync".to_owned(),
            "--logger=zap".to_owned(),
            "--log-level=error".to_owned(),
            // Otherwise members can be added and removed only after five seconds of health.
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
                .find(|name| binary.supports_flag(name))
                .expect("etcd 3.4 and later support one of these flags");
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
