//! Forgetting history.

use std::time::Duration;

use super::{ResponseHeader, header};
use crate::{
    call::Rpc,
    client::Client,
    error::{Error, Result},
    proto::{CompactionRequest, CompactionResponse},
    request::request,
    retry::RpcClass,
    transport::grpc,
};

/// Forgets the history before a revision.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct Compact<C = ()> {
    wire: CompactionRequest,
    timeout: Option<Duration>,
    client: C,
}

request!(Compact { wire } -> CompactResponse);

/// A request that forgets the history before a revision: reads and watches from older ones fail afterwards.
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
    /// Answered only when the old revisions have been removed from the database.
    pub fn physical(mut self) -> Self {
        self.wire.physical = true;
        self
    }

    /// The message as it goes to etcd; fails where the request is not valid. For actors that stand in for etcd in tests.
    pub fn wire(&self) -> Result<CompactionRequest> {
        if self.wire.revision <= 0 {
            return Err(Error::invalid(format!(
                "there is no revision {} to compact",
                self.wire.revision
            )));
        }
        Ok(self.wire)
    }

    async fn perform(self, client: &Client, timeout: Duration) -> Result<CompactResponse> {
        let wire = self.wire()?;
        let rpc = Rpc {
            path: "/etcdserverpb.KV/Compact",
            class: RpcClass::Mutation,
            leaderless: false,
            waits: false,
        };
        let answer: CompactionResponse = client
            .caller()
            .unary(rpc, grpc::encode(&wire)?, timeout)
            .await?;
        answer.try_into()
    }
}

/// What a [`Compact`] did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CompactResponse {
    /// The current revision, and who answered.
    pub header: ResponseHeader,
}

impl TryFrom<CompactionResponse> for CompactResponse {
    type Error = Error;

    fn try_from(answer: CompactionResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
        })
    }
}
