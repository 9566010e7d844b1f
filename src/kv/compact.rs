//! Compacting history.

use std::time::Duration;

use super::ResponseHeader;
use crate::{
    error::{Error, Result},
    proto::{CompactionRequest, CompactionResponse, rpc},
    request::{
        ClientHandle,
        macros::{from_response, request},
    },
    transport::grpc,
};

/// Discards the history before a revision.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Compact<C = ()> {
    wire: CompactionRequest,
    timeout: Option<Duration>,
    client: C,
}

request!(Compact { wire } -> CompactResponse);

/// Creates a request that discards the history before a revision. Reads and watches from older revisions fail
/// afterwards.
pub fn compact(revision: i64) -> Compact {
    Compact {
        wire: CompactionRequest {
            revision,
            physical: false,
        },
        timeout: None,
        client: (),
    }
}

impl<C> Compact<C> {
    /// Waits until the old revisions are removed from the database. Default: etcd responds as soon as the compaction is
    /// scheduled.
    pub fn physical(mut self) -> Self {
        self.wire.physical = true;
        self
    }

    /// Returns the message that is sent to etcd. Fails if the request is not valid. Useful for actors that replace
    /// `Etcd` in tests.
    pub fn wire(&self) -> Result<CompactionRequest> {
        if self.wire.revision <= 0 {
            return Err(Error::invalid(format!(
                "the revision to compact must be positive, but is {}",
                self.wire.revision
            )));
        }
        Ok(self.wire)
    }

    async fn perform(
        self,
        client: &impl ClientHandle,
        timeout: Duration,
    ) -> Result<CompactResponse> {
        let wire = self.wire().map_err(|error| error.with_rpc(rpc::COMPACT))?;
        let body = grpc::encode(&wire)?;
        let response: CompactionResponse =
            client.caller().unary(rpc::COMPACT, body, timeout).await?;
        response.try_into()
    }
}

/// The response to a [`Compact`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CompactResponse {
    /// Cluster and member that responded, and the current revision.
    pub header: ResponseHeader,
}

from_response!(CompactResponse requires header: CompactionResponse);
