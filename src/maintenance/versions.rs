//! Versions of the members.

use std::{fmt, time::Duration};

use super::{Maintenance, Status};
use crate::{
    error::{Error, ErrorKind, Outcome, Result},
    request::ClientHandle,
};

/// The version of a member.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemberVersion {
    /// The member's endpoint.
    pub endpoint: String,
    /// Version, such as `3.7.2`, or the error of the member.
    pub version: Result<String>,
}

/// Returns the version of every member. A member that does not respond within the timeout is listed with its error.
pub(crate) async fn member_versions(
    client: &impl ClientHandle,
    endpoints: Vec<String>,
    timeout: Duration,
) -> Vec<MemberVersion> {
    let maintenance = Maintenance::new(client.clone());
    let requests: Vec<_> = endpoints
        .iter()
        .map(|endpoint| {
            let status = maintenance.status().at(endpoint).timeout(timeout);
            tokio::spawn(status.into_future())
        })
        .collect();
    let mut versions = Vec::with_capacity(requests.len());
    for (endpoint, status) in endpoints.into_iter().zip(requests) {
        let status: Result<Status> = status.await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Internal,
                Outcome::NotSent,
                "the status request was dropped",
            ))
        });
        versions.push(MemberVersion {
            endpoint,
            version: status.map(|status| status.version),
        });
    }
    versions
}

/// Fails with [`ErrorKind::OldCluster`] if a member runs an older version than `required`. Members that do not respond
/// are ignored, unless none responds.
pub(crate) fn require_version(members: Vec<MemberVersion>, required: Version) -> Result<()> {
    let mut failure = None;
    let mut responded = false;
    for member in members {
        match member.version {
            Ok(version) => {
                responded = true;
                if Version::parse(&version).is_none_or(|found| found < required) {
                    return Err(Error::new(
                        ErrorKind::OldCluster,
                        Outcome::NotSent,
                        format!(
                            "{} runs etcd {version}, but `min_cluster_version` requires {required}",
                            member.endpoint
                        ),
                    ));
                }
            }
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if !responded => Err(error),
        _ => Ok(()),
    }
}

/// A release version. Missing parts count as 0: `3.5` is older than `3.5.1` and newer than `3.4.30`.
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

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
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
