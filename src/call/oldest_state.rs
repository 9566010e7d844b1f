//! The oldest state that a read may return.

use super::WireResponse;
use crate::{
    error::{Error, ErrorKind, Outcome},
    proto::ResponseHeader,
    transport::{Endpoint, grpc::RpcFailure},
};

/// The oldest state that a read may return. An older response fails the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OldestState {
    /// Cluster of the revision. Revisions of other clusters are not compared with it.
    pub(crate) cluster: u64,
    pub(crate) revision: i64,
    /// Whether a quorum confirms the response. Then an older one proves that the cluster has lost revisions.
    pub(crate) confirmed: bool,
}

impl OldestState {
    fn is_newer_than(&self, header: &ResponseHeader) -> bool {
        header.cluster_id == self.cluster && header.revision < self.revision
    }

    /// Fails if the response is older.
    pub(super) fn check<R: WireResponse>(
        &self,
        response: R,
        endpoint: &Endpoint,
    ) -> Result<R, RpcFailure> {
        match response.header() {
            Some(header) if self.is_newer_than(header) => {
                let error = self.error(header.revision);
                Err(error.with_endpoint(endpoint.name()).into())
            }
            Some(_) | None => Ok(response),
        }
    }

    fn error(&self, current: i64) -> Error {
        let seen = self.revision;
        let (kind, reason) = if self.confirmed {
            let reason = format!(
                "the cluster is at revision {current}, but this client has seen revision {seen}: it was restored from \
                 a backup or lost its data; accept the older state with a new `Client::ordered`"
            );
            (ErrorKind::RevisionRegressed, reason)
        } else {
            let reason = format!(
                "the member is at revision {current}, but this client has seen revision {seen}"
            );
            (ErrorKind::StaleRead, reason)
        };
        Error::new(kind, Outcome::Rejected, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_older_revision_of_same_cluster_is_stale() {
        let oldest = OldestState {
            cluster: 7,
            revision: 5,
            confirmed: false,
        };
        let header = |cluster_id, revision| ResponseHeader {
            cluster_id,
            revision,
            ..ResponseHeader::default()
        };
        assert!(oldest.is_newer_than(&header(7, 4)));
        assert!(!oldest.is_newer_than(&header(7, 5)));
        assert!(!oldest.is_newer_than(&header(8, 4)));
    }

    #[test]
    fn older_confirmed_response_proves_lost_revisions() {
        let oldest = |confirmed| OldestState {
            cluster: 7,
            revision: 5,
            confirmed,
        };
        assert_eq!(oldest(false).error(4).kind(), ErrorKind::StaleRead);
        assert_eq!(oldest(true).error(4).kind(), ErrorKind::RevisionRegressed);
    }
}
