//! Elections that the server holds (service `v3election`).
//!
//! As with [`locks`](super::locks), the server waits; prefer the recipes of this crate, which survive a failing member.

use crate::{
    call::Rpc,
    client::Client,
    error::{Error, ErrorKind, Outcome, Result},
    proto::{
        KeyValue, ResponseHeader,
        v3electionpb::{
            CampaignRequest, CampaignResponse, LeaderRequest, LeaderResponse, ProclaimRequest,
            ProclaimResponse, ResignRequest, ResignResponse,
        },
    },
    request::{
        HeaderResponse, IntoBytes, Request, ResponseStream, answers, header, header_responses,
    },
    retry::RpcClass,
};

pub use crate::proto::v3electionpb::LeaderKey;

answers!(CampaignResponse, LeaderResponse);
header_responses!(ProclaimResponse, ResignResponse);

const fn rpc(path: &'static str, class: RpcClass) -> Rpc {
    Rpc {
        path,
        class,
        leaderless: false,
        waits: false,
    }
}

/// Elections that the server holds; see [`Client::server_elections`].
#[derive(Debug, Clone)]
pub struct ServerElections<C = Client>(C);

impl Client {
    /// Elections that the server holds.
    pub fn server_elections(&self) -> ServerElections {
        ServerElections(self.clone())
    }
}

/// The same, bound to no client yet: messages to the actor [`Etcd`](crate::Etcd), or to be bound with `.on(&client)`.
pub fn requests() -> ServerElections<()> {
    ServerElections(())
}

impl<C: Clone> ServerElections<C> {
    /// Waits to be elected, and proclaims a value then; it lasts for as long as the lease lives, or until `resign`.
    /// Allow as long as it may take (`.timeout`).
    pub fn campaign(
        &self,
        name: impl IntoBytes,
        lease: impl Into<i64>,
        value: impl IntoBytes,
    ) -> Request<Elected, C> {
        let request = CampaignRequest {
            name: name.into_bytes(),
            lease: lease.into(),
            value: value.into_bytes(),
        };
        let rpc = Rpc {
            waits: true,
            ..rpc("/v3electionpb.Election/Campaign", RpcClass::Mutation)
        };
        Request::new::<CampaignResponse>(&self.0, rpc, &request)
    }

    /// Changes the leader's value.
    pub fn proclaim(
        &self,
        leader: &LeaderKey,
        value: impl IntoBytes,
    ) -> Request<HeaderResponse, C> {
        let request = ProclaimRequest {
            leader: Some(leader.clone()),
            value: value.into_bytes(),
        };
        // A late one would bring an old value back.
        let rpc = rpc("/v3electionpb.Election/Proclaim", RpcClass::Mutation);
        Request::new::<ProclaimResponse>(&self.0, rpc, &request)
    }

    /// Gives the leadership up.
    pub fn resign(&self, leader: &LeaderKey) -> Request<HeaderResponse, C> {
        let request = ResignRequest {
            leader: Some(leader.clone()),
        };
        let rpc = rpc("/v3electionpb.Election/Resign", RpcClass::Idempotent);
        Request::new::<ResignResponse>(&self.0, rpc, &request)
    }

    /// Who leads; fails if nobody does.
    pub fn leader(&self, name: impl IntoBytes) -> Request<Leader, C> {
        let request = LeaderRequest {
            name: name.into_bytes(),
        };
        let rpc = rpc("/v3electionpb.Election/Leader", RpcClass::Read);
        Request::new::<LeaderResponse>(&self.0, rpc, &request)
    }
}

impl ServerElections {
    /// The leader now, and every one that follows. The stream ends with an error if its member fails: open it again.
    pub async fn observe(&self, name: impl IntoBytes) -> Result<ResponseStream<Leader>> {
        let request = LeaderRequest {
            name: name.into_bytes(),
        };
        ResponseStream::open::<_, LeaderResponse>(
            &self.0,
            "/v3electionpb.Election/Observe",
            request,
            None,
        )
        .await
    }
}

/// An election that was won.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Elected {
    /// Who answered.
    pub header: ResponseHeader,
    /// The proof of leadership, for `proclaim` and `resign`.
    pub leader: LeaderKey,
}

impl TryFrom<CampaignResponse> for Elected {
    type Error = Error;

    fn try_from(answer: CampaignResponse) -> Result<Self> {
        let missing = || {
            Error::new(
                ErrorKind::Protocol,
                Outcome::Unknown,
                "the answer has no leader",
            )
        };
        Ok(Self {
            header: header(answer.header)?,
            leader: answer.leader.ok_or_else(missing)?,
        })
    }
}

/// Who leads.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Leader {
    /// Who answered.
    pub header: ResponseHeader,
    /// The leader's key and the value it proclaimed; `None` while there is no leader.
    pub kv: Option<KeyValue>,
}

impl TryFrom<LeaderResponse> for Leader {
    type Error = Error;

    fn try_from(answer: LeaderResponse) -> Result<Self> {
        Ok(Self {
            header: header(answer.header)?,
            kv: answer.kv,
        })
    }
}
