//! Which etcd the members run, and whether that is new enough.

use std::time::Duration;

use super::Status;
use crate::{
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
};

/// What a member runs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemberVersion {
    /// The member's endpoint.
    pub endpoint: String,
    /// Its version, like `3.7.2`, or why it cannot be told.
    pub version: Result<String>,
}

impl Client {
    /// What every member runs. A member that does not answer within the request time-out is told with its error.
    pub async fn versions(&self) -> Vec<MemberVersion> {
        self.versions_within(self.request_timeout()).await
    }

    async fn versions_within(&self, patience: Duration) -> Vec<MemberVersion> {
        let endpoints = self.endpoints();
        let asked: Vec<_> = endpoints
            .iter()
            .map(|endpoint| {
                let status = self.maintenance().status().at(endpoint).timeout(patience);
                tokio::spawn(status.into_future())
            })
            .collect();
        let mut versions = Vec::with_capacity(asked.len());
        for (endpoint, status) in endpoints.into_iter().zip(asked) {
            let status: Result<Status> = status.await.unwrap_or_else(|_| {
                Err(Error::new(
                    ErrorKind::Internal,
                    Outcome::NotSent,
                    "the question was dropped",
                ))
            });
            versions.push(MemberVersion {
                endpoint,
                version: status.map(|status| status.version),
            });
        }
        versions
    }

    /// Fails with [`ErrorKind::OldCluster`] if a member that answers is older than that, and with its error if none
    /// answers.
    pub(crate) async fn require_version(&self, wanted: Version, patience: Duration) -> Result<()> {
        let mut silent = None;
        let mut told = false;
        for member in self.versions_within(patience).await {
            match member.version {
                Ok(version) => {
                    told = true;
                    if Version::parse(&version).is_none_or(|found| found < wanted) {
                        return Err(Error::new(
                            ErrorKind::OldCluster,
                            Outcome::NotSent,
                            format!("{} runs {version}", member.endpoint),
                        ));
                    }
                }
                Err(error) => silent = Some(error),
            }
        }
        match silent {
            Some(error) if !told => Err(error),
            _ => Ok(()),
        }
    }
}

/// A version as far as it matters: `3.5` is older than `3.5.1` and newer than `3.4.30`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version([u32; 3]);

impl Version {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let release = text.trim_start_matches('v').split(['-', '+']).next()?;
        let mut version = [0; 3];
        let mut parts = release.split('.');
        for (number, part) in version.iter_mut().zip(&mut parts) {
            *number = part.parse().ok()?;
        }
        parts.next().is_none().then_some(Self(version))
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_compare_by_number() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("3.10.0") > version("3.9.9"));
        assert!(version("3.5") < version("3.5.1"));
        assert_eq!(version("v3.8.0-alpha.1"), version("3.8"));
        for text in ["", "three", "3.x", "3.5.1.2"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }
}
